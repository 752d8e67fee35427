from services.placement.service import SERVICE
from shared.service import main

main(SERVICE)
