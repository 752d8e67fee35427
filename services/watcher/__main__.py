"""python -m services.watcher"""

from services.watcher.service import Watcher
from shared.service import main

main(Watcher)
