{{/* What the schema cannot say. Every message says what to change. Included once, by serviceaccount.yaml. */}}

{{- define "grpo.hasApi" -}}
{{- if or (.root.Capabilities.APIVersions.Has .api) (has .api .root.Values.assumeApiVersions) }}true{{ end -}}
{{- end -}}

{{/* Arguments: root, api, what, instead */}}
{{- define "grpo.needApi" -}}
{{- if not (include "grpo.hasApi" .) -}}
{{- fail (printf "%s needs %s, which this cluster does not have: %s. A tool that renders without asking the cluster is told by assumeApiVersions: [%s]." .what .api .instead .api) -}}
{{- end -}}
{{- end -}}

{{- define "grpo.checks" -}}
{{- $values := .Values -}}
{{- if not (or $values.image.registry ($values.global).imageRegistry) -}}
{{- fail "image.registry is not set: where are the images? Such as --set image.registry=ghcr.io/OWNER" -}}
{{- end -}}
{{- if not $values.auth.existingSecret -}}
{{- fail "auth.existingSecret is not set: the servers refuse to start without a token. Make one with: kubectl create secret generic grpo-token --from-literal=token=$(openssl rand -hex 32), and set auth.existingSecret=grpo-token" -}}
{{- end -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" (include "grpo.fullname" .)) -}}
{{- fail (printf "the objects would be called %s, and a Service's name begins with a letter and has lower-case letters, digits and - only: choose another release name, or set fullnameOverride" (include "grpo.fullname" .)) -}}
{{- end -}}
{{- if and (has $values.dnsPolicy (list "None" "Default")) (not (and ($values.dnsConfig).nameservers ($values.dnsConfig).searches)) -}}
{{- fail (printf "dnsPolicy %s needs dnsConfig.nameservers, and dnsConfig.searches such as [NAMESPACE.svc.cluster.local, svc.cluster.local, cluster.local]: services and pods find each other by short names" $values.dnsPolicy) -}}
{{- end -}}
{{- if not (or $values.rollout.enabled $values.reward.enabled $values.trainer.enabled) -}}
{{- fail "nothing to install: rollout.enabled, reward.enabled and trainer.enabled are all false" -}}
{{- end -}}
{{- if and $values.rollout.enabled (not $values.rollout.model) -}}
{{- fail "rollout.model is not set: a folder such as /models/demo, or a name on the Hugging Face hub" -}}
{{- end -}}
{{- if $values.rollout.enabled -}}{{- include "grpo.checkServing" (dict "name" "rollout" "part" $values.rollout) -}}{{- end -}}
{{- if $values.reward.enabled -}}
{{- include "grpo.checkServing" (dict "name" "reward" "part" $values.reward) -}}
{{- include "grpo.checkRewardCores" . -}}
{{- $ends := add (int $values.reward.preStopSeconds) (int (ceil (dig "grace_s" 10.0 (default (dict) $values.reward.settings)))) -}}
{{- if ge (int $ends) (int $values.reward.terminationGracePeriodSeconds) -}}
{{- fail (printf "reward.preStopSeconds and reward.settings.grace_s are %d s in all, and after reward.terminationGracePeriodSeconds %d the server is killed: make that longer" (int $ends) (int $values.reward.terminationGracePeriodSeconds)) -}}
{{- end -}}
{{- end -}}
{{- if and $values.rollout.updateStrategy (include "grpo.spansNodes" .) -}}
{{- fail "rollout.updateStrategy is that of a StatefulSet, and with rollout.engine.nodes above 1 there is none: leave it out" -}}
{{- end -}}
{{- range $argument := $values.rollout.args -}}
{{- if regexMatch "^--(host|port)(=.*)?$" $argument -}}
{{- fail (printf "rollout.args has %s, which the chart decides: Service, probes and NetworkPolicy lead to port 8000; leave it out" $argument) -}}
{{- end -}}
{{- end -}}
{{- if $values.rollout.enabled -}}{{- include "grpo.checkParallelSizes" $values.rollout -}}{{- end -}}
{{- if $values.trainer.enabled -}}{{- include "grpo.checkTrainer" . -}}{{- end -}}
{{- $models := $values.storage.models -}}
{{- if and $models.enabled (not $models.existingClaim) (has "ReadWriteOncePod" $models.accessModes) -}}
{{- $engines := ternary (mul (int $values.rollout.replicas) (int $values.rollout.engine.nodes)) 0 $values.rollout.enabled -}}
{{- $pods := add $engines (ternary (int $values.trainer.nodes) 0 $values.trainer.enabled) (ternary 1 0 $values.prepare.enabled) -}}
{{- if gt (int $pods) 1 -}}
{{- fail (printf "storage.models.accessModes ReadWriteOncePod lets a single pod mount the models, and %d have to: take ReadWriteMany, or ReadWriteOnce on one node" $pods) -}}
{{- end -}}
{{- end -}}
{{- if and $values.prepare.enabled (not (and $values.prepare.script $values.storage.models.enabled)) -}}
{{- fail "prepare.enabled needs prepare.script, and storage.models.enabled: it writes there" -}}
{{- end -}}
{{- if and $values.prepare.enabled (not (or $values.trainer.enabled $values.rollout.enabled)) -}}
{{- fail "prepare.enabled without rollout and trainer: nobody would read what it makes" -}}
{{- end -}}
{{- if and $values.tls.serveRollout (not $values.tls.existingSecret) -}}
{{- fail "tls.serveRollout needs tls.existingSecret, a secret of type kubernetes.io/tls" -}}
{{- end -}}
{{- if gt (int $values.networkPolicy.dataPorts.first) (int $values.networkPolicy.dataPorts.last) -}}
{{- fail (printf "networkPolicy.dataPorts: first %d is after last %d" (int $values.networkPolicy.dataPorts.first) (int $values.networkPolicy.dataPorts.last)) -}}
{{- end -}}
{{- if lt (sub (int $values.networkPolicy.dataPorts.last) (int $values.networkPolicy.dataPorts.first)) 499 -}}
{{- fail "networkPolicy.dataPorts: fewer than 500 ports. They are the pods' whole range for outgoing connections too." -}}
{{- end -}}
{{- $listens := dict "the port of the rollout servers" 8000 "the port of the reward servers" 8001 "the port of the trainer" 8002 "networkPolicy.rendezvousPort" (int $values.networkPolicy.rendezvousPort) -}}
{{- if gt (int $values.trainer.nodes) 1 -}}{{- $_ := set $listens "trainer.masterPort" (int $values.trainer.masterPort) -}}{{- end -}}
{{- if include "grpo.spansNodes" . -}}{{- $_ := set $listens "rollout.engine.port" (int $values.rollout.engine.port) -}}{{- end -}}
{{- range $name, $port := $listens -}}
{{- if and (ge $port (int $values.networkPolicy.dataPorts.first)) (le $port (int $values.networkPolicy.dataPorts.last)) -}}
{{- fail (printf "networkPolicy.dataPorts: %d to %d has %d in it, %s. The pods' outgoing connections take any port of the range, and could take this one first; move the range, such as to 40000 to 41999" (int $values.networkPolicy.dataPorts.first) (int $values.networkPolicy.dataPorts.last) $port $name) -}}
{{- end -}}
{{- end -}}
{{- include "grpo.checkLabels" . -}}
{{- include "grpo.checkVolumes" . -}}
{{- include "grpo.checkVariables" . -}}
{{- if and $values.reward.autoscaling.enabled (gt (int $values.reward.autoscaling.minReplicas) (int $values.reward.autoscaling.maxReplicas)) -}}
{{- fail "reward.autoscaling: minReplicas is more than maxReplicas" -}}
{{- end -}}
{{- if and $values.reward.ingress.enabled (not $values.reward.ingress.host) -}}
{{- fail "reward.ingress.enabled needs reward.ingress.host" -}}
{{- end -}}
{{- if and $values.rollout.enabled (include "grpo.spansNodes" .) -}}
{{- include "grpo.needApi" (dict "root" . "api" "leaderworkerset.x-k8s.io/v1" "what" (printf "rollout.engine.nodes %d" (int $values.rollout.engine.nodes)) "instead" "install LeaderWorkerSet, or set rollout.engine.nodes to 1") -}}
{{- end -}}
{{- if and $values.reward.enabled (eq $values.reward.executor "ray") -}}
{{- if eq $values.auth.rayKey $values.auth.key -}}
{{- fail (printf "auth.rayKey is %s, as auth.key: rewards can read what Ray asks for, and would have the API token; give Ray a key of its own" $values.auth.key) -}}
{{- end -}}
{{- include "grpo.needApi" (dict "root" . "api" "ray.io/v1" "what" "reward.executor ray" "instead" "install the KubeRay operator, or set reward.executor to process") -}}
{{- end -}}
{{- if and $values.trainer.enabled (eq $values.trainer.controller "JobSet") -}}
{{- include "grpo.needApi" (dict "root" . "api" "jobset.x-k8s.io/v1alpha2" "what" "trainer.controller JobSet" "instead" "install JobSet, or set trainer.controller to Job") -}}
{{- end -}}
{{- if ($values.kueue).queueName -}}
{{- $newer := include "grpo.hasApi" (dict "root" . "api" "kueue.x-k8s.io/v1beta2") -}}
{{- include "grpo.needApi" (dict "root" . "api" (ternary "kueue.x-k8s.io/v1beta2" "kueue.x-k8s.io/v1beta1" (eq $newer "true")) "what" "kueue.queueName" "instead" "install Kueue, or leave kueue.queueName empty") -}}
{{- end -}}
{{- if $values.metrics.serviceMonitor.enabled -}}
{{- include "grpo.needApi" (dict "root" . "api" "monitoring.coreos.com/v1" "what" "metrics.serviceMonitor.enabled" "instead" "install the Prometheus operator, or set metrics.serviceMonitor.enabled to false") -}}
{{- end -}}
{{- if $values.metrics.prometheusRule.enabled -}}
{{- include "grpo.needApi" (dict "root" . "api" "monitoring.coreos.com/v1" "what" "metrics.prometheusRule.enabled" "instead" "install the Prometheus operator, or set metrics.prometheusRule.enabled to false") -}}
{{- end -}}
{{- end -}}

{{/* The same key twice is no YAML, and another value for one of ours breaks the selectors. */}}
{{- define "grpo.checkLabels" -}}
{{- $values := .Values -}}
{{- $ours := keys (fromYaml (include "grpo.labels" (dict "root" (dict "Chart" .Chart "Release" .Release "Values" (omit $values "commonLabels")) "component" "any"))) -}}
{{- $ours = append $ours "grpo-services/scrape" -}}
{{- /* Pods have neither version nor chart. */}}
{{- $ofPods := keys (fromYaml (include "grpo.selector" (dict "root" . "component" "any"))) -}}
{{- $queue := list "kueue.x-k8s.io/queue-name" "kueue.x-k8s.io/priority-class" -}}
{{- $common := keys (default (dict) $values.commonLabels) -}}
{{- $given := dict
  "commonLabels" $values.commonLabels
  "rollout.workloadLabels" $values.rollout.workloadLabels
  "reward.workloadLabels" $values.reward.workloadLabels
  "rollout.podLabels" $values.rollout.podLabels
  "reward.podLabels" $values.reward.podLabels
  "trainer.podLabels" $values.trainer.podLabels
  "metrics.serviceMonitor.labels" $values.metrics.serviceMonitor.labels
  "metrics.prometheusRule.labels" $values.metrics.prometheusRule.labels
  "metrics.dashboards.labels" $values.metrics.dashboards.labels -}}
{{- range $where, $labels := $given -}}
{{- range $key := keys (default (dict) $labels) -}}
{{- if and (has $key $queue) (not (hasSuffix ".workloadLabels" $where)) -}}
{{- fail (printf "%s has %s, which Kueue reads on whole workloads: set kueue.queueName and kueue.priorityClass for the trainer and what prepares, rollout.workloadLabels and reward.workloadLabels for the servers" $where $key) -}}
{{- else -}}
{{- $taken := has $key (ternary $ofPods $ours (hasSuffix ".podLabels" $where)) -}}
{{- if or $taken (and (has $key $common) (ne $where "commonLabels")) -}}
{{- fail (printf "%s has %s, which %s already; leave it out" $where $key (ternary "the chart sets" "commonLabels has" $taken)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Server-side apply refuses a container with the same variable twice. */}}
{{- define "grpo.checkVariables" -}}
{{- $values := .Values -}}
{{- if $values.rollout.enabled -}}
{{- $rollout := fromYaml (include "grpo.rolloutContainer" (dict "root" . "component" "rollout" "part" $values.rollout)) -}}
{{- include "grpo.checkNamesOnce" (dict "name" "rollout.extraEnv" "env" $rollout.env "extra" $values.rollout.extraEnv) -}}
{{- end -}}
{{- if $values.reward.enabled -}}
{{- $reward := fromYamlArray (include "grpo.rewardEnv" (dict "root" . "component" "reward" "part" $values.reward)) -}}
{{- include "grpo.checkNamesOnce" (dict "name" "reward.extraEnv" "env" $reward "extra" $values.reward.extraEnv) -}}
{{- end -}}
{{- if $values.trainer.enabled -}}
{{- $trainer := fromYaml (include "grpo.trainerContainer" (dict "root" . "component" "trainer" "part" $values.trainer "job" "")) -}}
{{- include "grpo.checkNamesOnce" (dict "name" "trainer.extraEnv" "env" $trainer.env "extra" $values.trainer.extraEnv) -}}
{{- end -}}
{{- if $values.prepare.enabled -}}
{{- $prepare := index (fromYaml (include "grpo.preparePod" (dict "root" . "part" $values.trainer))).spec.containers 0 -}}
{{- include "grpo.checkNamesOnce" (dict "name" "prepare.extraEnv" "env" $prepare.env "extra" $values.prepare.extraEnv) -}}
{{- end -}}
{{- end -}}

{{/* Arguments: name; env, of the whole container; extra, what the user gave of it */}}
{{- define "grpo.checkNamesOnce" -}}
{{- $names := list -}}
{{- range .env -}}{{- $names = append $names .name -}}{{- end -}}
{{- range .extra -}}
{{- if lt (len (without $names .name)) (int (sub (len $names) 1)) -}}
{{- fail (printf "%s has %s, which is set already, by the chart or by another line of it; leave it out" $.name .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The name of a volume, or a path in a container, twice: the API server refuses such a pod. */}}
{{- define "grpo.checkVolumes" -}}
{{- $root := . -}}
{{- range $component := list "rollout" "reward" "trainer" -}}
{{- $part := index $root.Values $component -}}
{{- if $part.enabled -}}
{{- $pod := fromYaml (include (printf "grpo.%sPod" $component) (dict "root" $root "component" $component "part" $part "job" "")) -}}
{{- $names := list -}}
{{- range $pod.spec.volumes -}}
{{- if has .name $names -}}
{{- fail (printf "%s.extraVolumes has %s, which is there already, by the chart or by another line of it; give it another name" $component .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- $paths := list -}}
{{- range (first $pod.spec.containers).volumeMounts -}}
{{- $path := trimSuffix "/" .mountPath -}}
{{- if has $path $paths -}}
{{- fail (printf "two volumes of the %s would be mounted at %s: change storage.runs.mountPath, storage.models.mountPath or %s.extraVolumeMounts" $component $path $component) -}}
{{- end -}}
{{- $paths = append $paths $path -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A reward server starts as many workers as cores it asks for, and the autoscaler compares with them. */}}
{{- define "grpo.checkRewardCores" -}}
{{- $reward := .Values.reward -}}
{{- $cores := or (($reward.resources).requests).cpu (($reward.resources).limits).cpu -}}
{{- if or (not $cores) (eq (toString $cores) "0") -}}
{{- if and (eq $reward.executor "process") (not (hasKey (default (dict) $reward.settings) "workers")) -}}
{{- fail "reward.resources.requests.cpu is not set: a server would start a worker for every core of its node; set it, or reward.settings.workers" -}}
{{- end -}}
{{- if and $reward.autoscaling.enabled (not $reward.autoscaling.metrics) -}}
{{- fail "reward.autoscaling compares the use of cores with reward.resources.requests.cpu, which is not set; set it, or reward.autoscaling.metrics" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Argument: rollout */}}
{{- define "grpo.checkParallelSizes" -}}
{{- $ranks := 1 -}}
{{- range regexFindAll "--(tensor|pipeline)-parallel-size[= ][0-9]+" (join " " .args) -1 -}}
{{- $ranks = mul $ranks (int (regexFind "[0-9]+$" .)) -}}
{{- end -}}
{{- $gpus := mul (int .gpus) (int .engine.nodes) -}}
{{- if and (gt (int $gpus) 0) (gt (int $ranks) (int $gpus)) -}}
{{- fail (printf "rollout.args spreads an engine over %d GPUs, and rollout.gpus on rollout.engine.nodes are %d: raise these, or lower --tensor-parallel-size or --pipeline-parallel-size" $ranks $gpus) -}}
{{- end -}}
{{- end -}}

{{/* Arguments: name, part */}}
{{- define "grpo.checkServing" -}}
{{- if le (int .part.terminationGracePeriodSeconds) (int .part.preStopSeconds) -}}
{{- fail (printf "%s.terminationGracePeriodSeconds %d is not more than %s.preStopSeconds %d, which counts to it: nothing would be left to end in; make it longer" .name (int .part.terminationGracePeriodSeconds) .name (int .part.preStopSeconds)) -}}
{{- end -}}
{{- end -}}

{{/* How long the trainer may save, and how long its pods wait before anything answers the startup probe. */}}
{{- define "grpo.checkTrainerTimes" -}}
{{- $trainer := .Values.trainer -}}
{{- $grace := int $trainer.terminationGracePeriodSeconds -}}
{{- if lt $grace 30 -}}
{{- fail (printf "trainer.terminationGracePeriodSeconds %d is less than 30: a step has to end and a checkpoint to be written in it" $grace) -}}
{{- end -}}
{{- if and (gt (int $trainer.lockTimeoutSeconds) 0) (le (int $trainer.lockTimeoutSeconds) $grace) -}}
{{- fail (printf "trainer.lockTimeoutSeconds %d is not more than trainer.terminationGracePeriodSeconds %d: the next pod would give up while the one before may still write its checkpoint; make it longer" (int $trainer.lockTimeoutSeconds) $grace) -}}
{{- end -}}
{{- $startup := mul (int $trainer.probes.startup.periodSeconds) (int $trainer.probes.startup.failureThreshold) -}}
{{- $waits := add (int $trainer.lockTimeoutSeconds) (ternary (int $trainer.startTimeoutSeconds) 0 (gt (int $trainer.nodes) 1)) -}}
{{- if and $trainer.probes.enabled (gt $waits $startup) -}}
{{- fail (printf "trainer.lockTimeoutSeconds%s is %d s in all, and trainer.probes.startup kills the pod after %d s: raise its failureThreshold, or lower what is waited" (ternary " and trainer.startTimeoutSeconds" "" (gt (int $trainer.nodes) 1)) $waits $startup) -}}
{{- end -}}
{{- end -}}

{{- define "grpo.checkTrainer" -}}
{{- include "grpo.checkTrainerTimes" . -}}
{{- $trainer := .Values.trainer -}}
{{- $run := default (dict) $trainer.run -}}
{{- if not (or (dig "data" "dataset" "" $run) (dig "data" "datasets" "" $run)) -}}
{{- fail "trainer.run.data.dataset is not set: a file such as /models/demo/data/train.jsonl, or a name on the Hugging Face hub" -}}
{{- end -}}
{{- $taught := dig "teacher" "url" "" $run -}}
{{- range (default (dict) (dig "data" "datasets" (dict) $run)) }}{{ $taught = default (dig "teacher" "url" "" .) $taught }}{{ end -}}
{{- if and (not (dig "reward" "reward_funcs" (list) $run)) (not $taught) -}}
{{- fail "trainer.run.reward.reward_funcs is not set: names of rewards, such as [countdown, format]; or set trainer.run.teacher.url" -}}
{{- end -}}
{{- if not (or .Values.rollout.model (dig "model" "name_or_path" "" $run)) -}}
{{- fail "trainer.run.model.name_or_path is not set, and there is no rollout.model to take it from" -}}
{{- end -}}
{{- if not (or .Values.rollout.enabled (dig "rollout" "urls" (list) $run)) -}}
{{- fail "rollout.enabled is false: set trainer.run.rollout.urls to the servers that the trainer shall use" -}}
{{- end -}}
{{- $urls := default (list) (dig "rollout" "urls" (list) $run) -}}
{{- $servers := ternary (len $urls) (int .Values.rollout.replicas) (gt (len $urls) 0) -}}
{{- with int (dig "rollout" "min_replicas" 1 $run) -}}
{{- if gt . $servers -}}
{{- fail (printf "trainer.run.rollout.min_replicas %d is more than the %d servers of %s: the trainer would refuse its run file; lower it, or have more servers" . $servers (ternary "trainer.run.rollout.urls" "rollout.replicas" (gt (len $urls) 0))) -}}
{{- end -}}
{{- end -}}
{{- if not (or .Values.reward.enabled (dig "reward" "url" "" $run)) -}}
{{- fail "reward.enabled is false: set trainer.run.reward.url to the server that the trainer shall use" -}}
{{- end -}}
{{- if not .Values.storage.runs.enabled -}}
{{- fail "trainer.enabled needs storage.runs.enabled: checkpoints must outlive the pod" -}}
{{- end -}}
{{- with dig "run_dir" "" $run -}}
{{- if eq (clean .) (clean $.Values.storage.runs.mountPath) -}}
{{- fail (printf "trainer.run.run_dir %s is storage.runs.mountPath itself: name a folder below it, the lock lies beside the run folder" .) -}}
{{- end -}}
{{- if not (hasPrefix (printf "%s/" (clean $.Values.storage.runs.mountPath)) (clean .)) -}}
{{- fail (printf "trainer.run.run_dir %s is not below storage.runs.mountPath %s: it would be lost with the pod" . $.Values.storage.runs.mountPath) -}}
{{- end -}}
{{- end -}}
{{- $ports := list 8002 (int .Values.networkPolicy.rendezvousPort) (int $trainer.masterPort) -}}
{{- $used := ternary $ports (initial $ports) (gt (int $trainer.nodes) 1) -}}
{{- if lt (len (uniq $used)) (len $used) -}}
{{- fail (printf "the trainer listens on 8002, on networkPolicy.rendezvousPort %d and on trainer.masterPort %d: choose three different ports" (index $ports 1) (index $ports 2)) -}}
{{- end -}}
{{- $pod := printf "%s-trainer-0-%d-abcde" (include "grpo.trainerJob" .) (sub (int $trainer.nodes) 1) -}}
{{- if and (eq $trainer.controller "JobSet") (gt (len $pod) 63) -}}
{{- fail (printf "the last pod of the JobSet would be called like %s, of %d characters, and JobSet allows 63: set fullnameOverride to at most %d characters" $pod (len $pod) (sub (add (len (include "grpo.fullname" .)) 63) (len $pod))) -}}
{{- end -}}
{{- if and $trainer.activeDeadlineSeconds (eq $trainer.controller "JobSet") -}}
{{- fail "trainer.activeDeadlineSeconds bounds a Job; a JobSet has no such bound: leave it out, or set trainer.controller to Job" -}}
{{- end -}}
{{- if and (gt (int $trainer.nodes) 1) (not (has "ReadWriteMany" .Values.storage.runs.accessModes)) (not .Values.storage.runs.existingClaim) -}}
{{- fail (printf "trainer.nodes %d needs a volume that several nodes can write: storage.runs.accessModes [ReadWriteMany]" (int $trainer.nodes)) -}}
{{- end -}}
{{- $models := .Values.storage.models -}}
{{- if and (gt (int $trainer.nodes) 1) $models.enabled (not $models.existingClaim) (not (or (has "ReadWriteMany" $models.accessModes) (has "ReadOnlyMany" $models.accessModes))) -}}
{{- fail (printf "trainer.nodes %d needs models on a volume that several nodes can mount: storage.models.accessModes [ReadWriteMany]" (int $trainer.nodes)) -}}
{{- end -}}
{{- if and (hasKey (dig "deepspeed" (dict) $run) "nproc_per_node") (gt (int $trainer.gpus) 0) (ne (int (dig "deepspeed" "nproc_per_node" 0 $run)) (int $trainer.gpus)) -}}
{{- fail (printf "trainer.run.deepspeed.nproc_per_node %d is not trainer.gpus %d: leave it out" (int (dig "deepspeed" "nproc_per_node" 0 $run)) (int $trainer.gpus)) -}}
{{- end -}}
{{- end -}}
