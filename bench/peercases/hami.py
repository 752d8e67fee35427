SUITES = {}
