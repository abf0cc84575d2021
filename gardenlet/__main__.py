"""`python -m gardenlet`: gardenlet from the source tree."""

from gardenlet.cli import main

raise SystemExit(main())
