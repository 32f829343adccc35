# Thin over dev.py, which needs no make: python dev.py demo. Arguments: make test ARGS="-k tree"
PYTHON ?= python3
DEV = @$(PYTHON) dev.py

.PHONY: help demo test test-all test-nightly check bench clean
help: ; $(DEV) --help
demo: ; $(DEV) demo -- $(ARGS)
test: ; $(DEV) test -- $(ARGS)
test-all: ; $(DEV) test-all -- $(ARGS)
test-nightly: ; $(DEV) test-nightly -- $(ARGS)
check: ; $(DEV) check
bench: ; $(DEV) bench -- $(ARGS)
clean: ; $(DEV) clean
