#!/bin/sh
# Data, model and cold start of the Countdown demo under /models/demo, once: what is complete is left alone.
# COLD_START_STEPS shortens the cold start, SEED chooses another model.
set -eu
demo=/models/demo
seed=${SEED:-42}
if [ -f "$demo/cold-start/config.json" ]; then
  echo "$demo is there already; remove the volume to make it again"
  exit 0
fi
rm -rf "$demo.part"
python examples/countdown/make_data.py "$demo.part/data"
python examples/countdown/make_model.py "$demo.part/base-model" --seed "$seed"
grpo-train cold-start examples/countdown/cold_start.yaml --seed "$seed" --max_steps "${COLD_START_STEPS:-300}" \
  --model.name_or_path "$demo.part/base-model" --data.dataset "$demo.part/data/cold_start.jsonl" \
  --output_dir "$demo.part/cold-start"
# Complete or absent: a rename is the last thing that happens.
rm -rf "$demo"
mv "$demo.part" "$demo"
