module kerf.dev/tools/workload

go 1.26.0
