"""`python -m chatcodec` is the command `chatcodec`."""

import sys

from chatcodec.cli import main

sys.exit(main())
