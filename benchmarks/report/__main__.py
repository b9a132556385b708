from benchmarks.report.document import main

main()
