"""What the agent knows of the machine it runs on; shared by the controllers."""
