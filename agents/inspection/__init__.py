"""What the commands for operators of both programs share: documents, how they are printed, and checks of configuration files.

A running agent never imports it.
"""
