from services.admission.service import SERVICE
from shared.service import main

main(SERVICE)
