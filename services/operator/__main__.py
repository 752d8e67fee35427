import sys

from services.operator.service import SERVICE
from shared.service import main

if sys.argv[1:2] == ["uninstall"]:
    from services.operator.uninstall import main as uninstall

    uninstall(sys.argv[2:])
main(SERVICE)
