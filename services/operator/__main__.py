import sys

from services.operator.service import SERVICE
from services.operator.uninstall import main as uninstall
from shared.service import main

if sys.argv[1:2] == ["uninstall"]:
    uninstall(sys.argv[2:])
else:
    main(SERVICE)
