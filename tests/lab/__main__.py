"""`python -m tests.lab`."""

import sys

from tests.lab.cli import main

sys.exit(main())
