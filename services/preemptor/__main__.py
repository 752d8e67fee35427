from services.preemptor.service import SERVICE
from shared.service import main

main(SERVICE)
