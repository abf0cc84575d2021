"""`python -m nodeagent`: the agent from the source tree."""

from nodeagent.cli import main

raise SystemExit(main())
