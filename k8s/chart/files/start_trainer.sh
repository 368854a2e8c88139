#!/bin/sh
# One pod of the trainer. Environment: RUN_FILE, LOCK_FILE, LOCK_TIMEOUT_S (0: no lock), NODES, NODE_RANK, RANKS_PER_NODE,
# MASTER_ADDR, MASTER_PORT, START_TIMEOUT_S, GRACE_S, HUNG_GRACE_S (30), SILENT_GRACE_S (half of GRACE_S); JOB_UID: of the Job, the same for all its pods.
#
# - One process at a time in a run folder: after an upgrade the pod before may still be writing its checkpoint.
# - Stopped is not done: after SIGTERM the trainer saves and ends with 0, which a Job would take for the end of training.
#   Then this script ends with 143, and the next pod goes on from that checkpoint.
# - Several pods: torchrun, which meets at the first pod. Ranks of one pod: grpo-train starts torchrun by itself.
# - Several pods stop together. Only the first one's trainer saves when it is told to stop, so the others tell it: by a file
#   beside the lock. And when its ranks end with 0, only the first pod knows whether the training is done or was stopped:
#   it says so by another file. A pod that took a stop for the end would be missed by all the others, for ever.
# - Both files carry the Job's UID: after an upgrade the pods of the Job before still write theirs.
# - The first pod's node may go without a word, and then nothing ever comes on the connections to it. Its successor has another
#   address and waits for the others: they see that, and start again, too.
# - Status 2 is the trainer's alone: the Job is not tried again after it. This shell, too, ends with 2 when it fails.
trap '[ $? != 2 ] || exit 1' EXIT
set -u
stop_file="$LOCK_FILE.$JOB_UID.stop" end_file="$LOCK_FILE.$JOB_UID.end"

first_pod() {
  python3 -c 'import socket, sys; print(*{found[4][0] for found in socket.getaddrinfo(sys.argv[1], None)})' "$MASTER_ADDR" 2>/dev/null
}
if [ "$NODES" -gt 1 ]; then
  waited=0
  until met=$(first_pod); do
    if [ "$(cat "$end_file" 2>/dev/null)" = done ]; then
      echo "the training is done, and the first pod is gone: there is nothing to do"
      exit 0
    fi
    if [ "$waited" -ge "$START_TIMEOUT_S" ]; then
      echo "error: $MASTER_ADDR has no address after $START_TIMEOUT_S s: is the first pod scheduled? Is there DNS?" >&2
      exit 1
    fi
    [ $((waited % 60)) -ne 0 ] || echo "waiting for the first pod, $MASTER_ADDR"
    sleep 2
    waited=$((waited + 2))
  done
  # torchrun's ranks meet when the first pod has the lock, and the last one its GPUs.
  meet_timeout_s=$((LOCK_TIMEOUT_S + START_TIMEOUT_S))
  set -- python3 -m grpo_trainer.launch --nnodes "$NODES" --node-rank "$NODE_RANK" --nproc-per-node "$RANKS_PER_NODE" \
    --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \
    --rdzv-conf "timeout=$meet_timeout_s" -m grpo_trainer
else
  set -- grpo-train
fi
# torchrun kills its ranks after this time; a checkpoint may take most of the pod's grace.
TORCH_ELASTIC_SHUTDOWN_TIMEOUT=$((GRACE_S > 20 ? GRACE_S - 10 : 10))
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT

set -- "$@" "$RUN_FILE" --resume
if [ "$NODE_RANK" = 0 ] && [ "$LOCK_TIMEOUT_S" -gt 0 ]; then
  flock --nonblock --conflict-exit-code 75 "$LOCK_FILE" true 2>/dev/null
  [ $? != 75 ] || echo "another process has $LOCK_FILE: waiting for it, $LOCK_TIMEOUT_S s at most" >&2
  # flock becomes the trainer, which so holds the lock until its end, whatever that is.
  set -- flock --no-fork --timeout "$LOCK_TIMEOUT_S" --conflict-exit-code 75 "$LOCK_FILE" "$@"
fi

HUNG_GRACE_S=${HUNG_GRACE_S:-30}
SILENT_GRACE_S=${SILENT_GRACE_S:-$((GRACE_S / 2))}
stopped=
replaced=
told=
child=
watcher=
# Once: a second signal would end the trainer without a checkpoint.
tell() {
  [ -z "$told" ] && [ -n "$child" ] || return 0
  told=yes
  if [ "$NODE_RANK" = 0 ]; then
    # A loop that hangs writes no checkpoint: it gets no time for one. Kubernetes heeds the liveness probe's own grace only
    # where it starts the container again, and a Job's it does not.
    probe() { python3 -I "$(dirname "$0")/trainer_probe.py" /livez >/dev/null 2>&1; }
    probe
    hung=$?
    kill -TERM "$child"
    if [ "$hung" = 3 ]; then
      echo "error: the training hangs: it is killed in $HUNG_GRACE_S s" >&2
      (sleep "$HUNG_GRACE_S" && kill -KILL "$child") >/dev/null 2>&1 &
    elif [ "$hung" = 4 ]; then
      # Nothing in it runs, or one long call holds Python, as the end of a large file of a checkpoint does on a slow file server:
      # asked again until it answers, or has had its time without.
      echo "error: the trainer does not answer: it is killed in $SILENT_GRACE_S s unless it says that it goes on" >&2
      (
        until_s=$(($(date +%s) + SILENT_GRACE_S))
        while :; do
          sleep 5
          probe
          case $? in 3 | 4) ;; *) exit 0 ;; esac
          [ "$(date +%s)" -lt "$until_s" ] || break
        done
        kill -KILL "$child"
      ) >/dev/null 2>&1 &
    fi
  else
    # In a shell of its own: one that cannot write it, as on a full volume, ends.
    if ! (: >"$stop_file"); then
      echo "error: the first pod cannot be told to stop, by $stop_file: is the volume full? This one stops alone" >&2
      kill -TERM "$child"
      return 0
    fi
    # The first pod takes the file away when it has seen it. Is there none yet, nothing can be saved.
    (sleep 60 && [ -e "$stop_file" ] && kill -TERM "$child") >/dev/null 2>&1 &
  fi
}
trap 'stopped=yes; tell' TERM INT
if [ "$NODES" -gt 1 ] && [ "$NODE_RANK" = 0 ]; then
  rm -f "$stop_file" "$end_file"
  # What Jobs of other days have left.
  find "$(dirname "$LOCK_FILE")" -maxdepth 1 \( -name "$(basename "$LOCK_FILE").*.stop" -o -name "$(basename "$LOCK_FILE").*.end" \) \
    -mmin +1440 -delete 2>/dev/null
  (
    trap - TERM INT
    until [ -e "$stop_file" ]; do sleep 2; done
    rm -f "$stop_file"
    echo "another pod was told to stop: all stop"
    kill -TERM $$
  ) &
  watcher=$!
elif [ "$NODES" -gt 1 ]; then
  trap 'replaced=yes; [ -z "$child" ] || kill -KILL "$child"' USR1
  (
    trap - TERM INT USR1
    while sleep 2 && kill -0 $$ 2>/dev/null; do
      # No address: it starts again, and its successor is looked for.
      now=$(first_pod) || continue
      for address in $met; do
        case " $now " in *" $address "*) continue 2 ;; esac
      done
      echo "the first pod, $MASTER_ADDR, is another one now: this one starts again" >&2
      kill -USR1 $$
      exit
    done
  ) &
  watcher=$!
fi
[ "$NODES" = 1 ] || echo "waiting for all $NODES pods, $meet_timeout_s s at most" >&2
"$@" &
child=$!
[ -z "$stopped" ] || tell
[ -z "$replaced" ] || kill -KILL "$child"
wait "$child"
status=$?
# A signal ends `wait`, not the trainer.
while kill -0 "$child" 2>/dev/null; do
  wait "$child"
  status=$?
done
if [ "$status" = 75 ]; then
  echo "error: another process has held $LOCK_FILE for $LOCK_TIMEOUT_S s: is another trainer using this run folder?" >&2
fi
# A shell that has just been forked loses a TERM: its parent's trap still takes it.
[ -z "$watcher" ] || kill -KILL "$watcher" 2>/dev/null
if [ "$NODES" -gt 1 ] && [ "$NODE_RANK" = 0 ]; then
  if [ "$status" = 0 ] && [ -z "$stopped" ]; then end=done; else end=stopped; fi
  # The others take the end for a stop when nobody tells them, and come back: this pod must come back as well.
  if ! (echo "$end" >"$end_file") && [ "$end" = done ]; then
    echo "error: the other pods cannot be told that the training is done, by $end_file: is the volume full?" >&2
    status=1
  fi
elif [ "$NODES" -gt 1 ] && [ "$status" = 0 ]; then
  # The first pod still writes the model and the report.
  waited=0
  until [ -s "$end_file" ] || [ "$waited" -ge "$GRACE_S" ]; do
    sleep 1
    waited=$((waited + 1))
  done
  if [ "$(cat "$end_file")" = done ]; then stopped=; else stopped=yes; fi
fi
if [ -n "$replaced" ] || { [ -n "$stopped" ] && [ "$status" = 0 ]; }; then
  exit 143
fi
trap - EXIT
exit "$status"
