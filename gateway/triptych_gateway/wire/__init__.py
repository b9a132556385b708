"""What the REST APIs share of their JSON: schemas, its conversion to the contract, errors, costs, log probabilities, events."""
