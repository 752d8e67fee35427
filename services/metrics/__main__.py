from services.metrics.service import SERVICE
from shared.service import main

main(SERVICE)
