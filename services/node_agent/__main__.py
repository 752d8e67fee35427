from services.node_agent.service import SERVICE
from shared.service import main

main(SERVICE)
