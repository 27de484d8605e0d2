# `make` alone lists the targets. Works with the make of Linux and of macOS.
.DEFAULT_GOAL := help
.PHONY: book test chapter html record serve lab setup clean help

PY := .venv/bin/python
INSTALLED := .venv/.installed

# make book SCALE=full is LLMSERVE_SCALE=full make book; without either the package's defaults hold.
define setting
ifdef $(1)
export LLMSERVE_$(1) := $$($(1))
endif
endef
$(foreach name,SCALE WEIGHTS DEVICE DTYPE PRODUCTS THREADS,$(eval $(call setting,$(name))))

book: $(INSTALLED) ## run every chapter and build the book
	@$(PY) -m tools book

test: $(INSTALLED) ## ruff, unit tests, then every chapter (quick scale unless SCALE is given)
	@$(PY) -m tools test

chapter: $(INSTALLED) ## run one chapter and build the book: make chapter N=1
	@if [ -z "$(N)" ]; then echo "Which chapter? For example: make chapter N=1" >&2; exit 1; fi
	@$(PY) -m tools chapter "$(N)"

html: $(INSTALLED) ## build the book from what ran last; DRAFT=1 also from what is stale or has not run
	@$(PY) -m tools html $(if $(filter-out 0,$(DRAFT)),--draft)

record: $(INSTALLED) ## run all at full scale (over an hour), or make record N=1,2, and write it down
	@$(PY) -m tools record $(if $(N),"$(N)")

serve: $(INSTALLED) ## open the built book on localhost
	@$(PY) -m tools serve

lab: $(INSTALLED) ## open the chapters in JupyterLab
	@$(PY) -m jupyterlab --LabApp.default_url=/lab/tree/book

setup: $(INSTALLED) ## make .venv and install what the book needs, no more

clean: ## remove everything built; .venv stays
	rm -rf _build build .pytest_cache .ruff_cache .hypothesis *.egg-info

help: ## list the targets
	@sed -n 's/^\([a-z]*\):[^#]*## /\1#/p' Makefile | awk -F'#' '{ printf "  make %-9s %s\n", $$1, $$2 }'
	@echo
	@echo "  SCALE=quick|full  WEIGHTS=auto|pretrained|random  DEVICE=cpu|cuda|mps  DTYPE=...  THREADS=n"
	@echo "  PRODUCTS=auto|streamed|packed|plain   streamed is the fastest on a CPU and needs a C compiler"
	@echo "  TORCH_INDEX=URL   where pip also looks for torch, for example the CPU-only builds:"
	@echo "                    https://download.pytorch.org/whl/cpu"
	@echo "  PYTHON=...        the Python (3.11 or newer) that .venv is made with"

# The stamp is written last: an installation that was broken off is taken up again.
$(INSTALLED): requirements.txt constraints.txt pyproject.toml | .venv/bin/python
	@echo "Installing what the book needs into .venv (the first time: some minutes) ..."
	$(PY) -m pip install $(if $(TORCH_INDEX),--extra-index-url "$(TORCH_INDEX)") -r requirements.txt
	$(PY) -m pip install --no-deps -e .
	@touch $@

# ensurepip is asked for too: some systems ship a python3 that cannot make a virtual environment.
.venv/bin/python:
	@for python in $(if $(PYTHON),"$(PYTHON)",python3.11 python3 python3.12 python3.13 python); do \
	  if "$$python" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "Making .venv with $$("$$python" --version) ..."; \
	    exec "$$python" -m venv .venv; \
	  fi; \
	done; \
	echo "No usable Python 3.11 or newer found. Install one (on Debian and Ubuntu: python3 and" >&2; \
	echo "python3-venv), or name it: make book PYTHON=/path/to/python3.11" >&2; \
	exit 1
