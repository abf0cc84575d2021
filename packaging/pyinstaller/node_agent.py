"""Entry point of the one-file build; PyInstaller wants a script."""

from nodeagent.cli import main

raise SystemExit(main())
