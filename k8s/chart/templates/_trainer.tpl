{{/* The trainer: its run file, its container and pod, and the name of its Job. */}}

{{- define "grpo.trainerRanks" -}}
{{- if gt (int .Values.trainer.gpus) 0 -}}
{{- int .Values.trainer.gpus -}}
{{- else -}}
{{- int (dig "deepspeed" "nproc_per_node" 1 (default (dict) .Values.trainer.run)) -}}
{{- end -}}
{{- end -}}

{{/* trainer.run, and below it what the chart knows better. What the user says wins. */}}
{{- define "grpo.runFile" -}}
{{- $known := dict
  "run_dir" (printf "%s/%s" (clean .Values.storage.runs.mountPath) (include "grpo.fullname" .))
  "model" (dict "name_or_path" .Values.rollout.model)
  "deepspeed" (dict "nproc_per_node" (int (include "grpo.trainerRanks" .)))
  "server" (dict "host" .Values.listenAddress "port" 8002)
  "weights" (dict "port" (int .Values.networkPolicy.rendezvousPort))
  "rollout" (dict "startup_timeout_s" 3600)
  "reward" (dict "startup_timeout_s" 1800) -}}
{{- if .Values.rollout.enabled -}}
{{- $_ := set $known.rollout "urls" (fromYamlArray (include "grpo.rolloutUrls" .)) -}}
{{- end -}}
{{- if .Values.reward.enabled -}}
{{- $_ := set $known.reward "url" (include "grpo.rewardUrl" .) -}}
{{- end -}}
{{- toYaml (mustMergeOverwrite $known (deepCopy (default (dict) .Values.trainer.run))) -}}
{{- end -}}

{{- define "grpo.runConfigMapData" -}}
run.yaml: |
  {{- include "grpo.runFile" . | nindent 2 }}
start_trainer.sh: |
  {{- .Files.Get "files/start_trainer.sh" | nindent 2 }}
trainer_probe.py: |
  {{- .Files.Get "files/trainer_probe.py" | nindent 2 }}
{{- end -}}

{{- define "grpo.trainerPods" -}}
{{- printf "%s-trainer-pods" (include "grpo.fullname" .) -}}
{{- end -}}

{{/* Where the first pod of the training is found. A JobSet's service has its own name: one with a name that lasts would
belong to the JobSet before, and go with it. Arguments: root, part, job */}}
{{- define "grpo.trainerMaster" -}}
{{- if eq .part.controller "JobSet" -}}
{{- printf "%s-trainer-0-0.%s" .job .job -}}
{{- else -}}
{{- printf "%s-0.%s" .job (include "grpo.trainerPods" .root) -}}
{{- end -}}
{{- end -}}

{{/* A Job's pods are immutable: other pods are another Job, and so is another queue, by Kueue's own rule, and another
failurePolicy of a JobSet. Its name carries the hash of it all, so an upgrade that changes nothing of the trainer leaves it
running. */}}
{{- define "grpo.trainerJob" -}}
{{- $anonymous := dict "root" . "component" "trainer" "part" .Values.trainer "job" "" -}}
{{- $whole := print (include "grpo.trainerJobSpec" $anonymous) (include "grpo.queueLabels" $anonymous | trim) -}}
{{- if eq .Values.trainer.controller "JobSet" -}}{{- $whole = print $whole (include "grpo.failurePolicy" .) -}}{{- end -}}
{{- printf "%s-t-%s" (include "grpo.fullname" .) ($whole | sha256sum | trunc 8) -}}
{{- end -}}

{{/* One lock for one run folder, beside it. */}}
{{- define "grpo.runLock" -}}
{{- $runDir := get (fromYaml (include "grpo.runFile" .)) "run_dir" -}}
{{- $mountPath := clean .Values.storage.runs.mountPath -}}
{{- printf "%s/.%s.lock" $mountPath (trimPrefix (printf "%s/" $mountPath) (clean $runDir) | replace "/" "-") -}}
{{- end -}}

{{- define "grpo.trainerProbe" -}}
exec:
  command: [python3, -I, /etc/grpo/run/trainer_probe.py, {{ .route }}]
{{ toYaml .probe }}
{{- end -}}

{{- define "grpo.trainerContainer" -}}
{{- $values := .root.Values -}}
name: trainer
image: {{ include "grpo.image" . }}
imagePullPolicy: {{ $values.image.pullPolicy }}
command: [sh, /etc/grpo/run/start_trainer.sh]
env:
  {{- include "grpo.env" . | nindent 2 }}
  - {name: RUN_FILE, value: /etc/grpo/run/run.yaml}
  - {name: LOCK_FILE, value: {{ include "grpo.runLock" .root | quote }}}
  - {name: LOCK_TIMEOUT_S, value: {{ int .part.lockTimeoutSeconds | quote }}}
  - {name: GRACE_S, value: {{ int .part.terminationGracePeriodSeconds | quote }}}
  - {name: NODES, value: {{ int .part.nodes | quote }}}
  - name: NODE_RANK
    valueFrom:
      fieldRef: {fieldPath: "metadata.annotations['batch.kubernetes.io/job-completion-index']"}
  # Of this Job, and of this attempt of a JobSet.
  - name: JOB_UID
    valueFrom:
      fieldRef: {fieldPath: "metadata.labels['batch.kubernetes.io/controller-uid']"}
  - {name: START_TIMEOUT_S, value: {{ int .part.startTimeoutSeconds | quote }}}
  - {name: RANKS_PER_NODE, value: {{ include "grpo.trainerRanks" .root | quote }}}
  - {name: MASTER_ADDR, value: {{ include "grpo.trainerMaster" . | quote }}}
  - {name: MASTER_PORT, value: {{ int .part.masterPort | quote }}}
  # The address that rollout workers dial back to. The environment wins over the run file.
  - name: GRPO_TRAIN__WEIGHTS__HOST
    valueFrom:
      fieldRef: {fieldPath: status.podIP}
  {{- with .part.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
ports:
  - {name: http, containerPort: 8002, protocol: TCP}
  - {name: rendezvous, containerPort: {{ $values.networkPolicy.rendezvousPort }}, protocol: TCP}
  {{- if gt (int .part.nodes) 1 }}
  - {name: master, containerPort: {{ .part.masterPort }}, protocol: TCP}
  {{- end }}
{{- if .part.probes.enabled }}
startupProbe:
  {{- include "grpo.trainerProbe" (dict "route" "/livez" "probe" .part.probes.startup) | nindent 2 }}
livenessProbe:
  {{- include "grpo.trainerProbe" (dict "route" "/livez" "probe" .part.probes.liveness) | nindent 2 }}
  # A loop that hangs writes no checkpoint: it gets no time for one.
  terminationGracePeriodSeconds: 30
readinessProbe:
  {{- include "grpo.trainerProbe" (dict "route" "/readyz" "probe" .part.probes.readiness) | nindent 2 }}
{{- end }}
{{ include "grpo.resources" . }}
securityContext:
  {{- include "grpo.containerSecurity" . | nindent 2 }}
volumeMounts:
  {{- include "grpo.volumeMounts" . | nindent 2 }}
  - {name: run-file, mountPath: /etc/grpo/run, readOnly: true}
{{- end -}}

{{- define "grpo.trainerPod" -}}
metadata:
  {{- include "grpo.podMetadata" (merge (dict "annotations" (dict "checksum/run-file" (include "grpo.runConfigMapData" .root | sha256sum))) .) | nindent 2 }}
spec:
  {{- include "grpo.podSpec" . | nindent 2 }}
  restartPolicy: Never
  {{- if eq .part.controller "Job" }}
  subdomain: {{ include "grpo.trainerPods" .root }}
  {{- end }}
  {{- with include "grpo.waitForPrepare" . }}
  initContainers:
    {{- . | nindent 4 }}
  {{- end }}
  containers:
    -
      {{- include "grpo.trainerContainer" . | nindent 6 }}
  volumes:
    {{- include "grpo.volumes" . | nindent 4 }}
    - name: run-file
      configMap: {name: {{ .job | quote }}}
{{- end -}}

{{/* A Job of `nodes` pods, each with an index. Wholly restarted by Kubernetes' Job controller, or by JobSet. */}}
{{- define "grpo.trainerJobSpec" -}}
completionMode: Indexed
completions: {{ .part.nodes }}
parallelism: {{ .part.nodes }}
{{- if eq .part.controller "Job" }}
# One pod that fails takes the others with it, and each of them counts.
backoffLimit: {{ mul .part.maxRestarts .part.nodes }}
{{- else }}
backoffLimit: 0
{{- end }}
podReplacementPolicy: Failed
podFailurePolicy:
  rules:
    # The node went away, or something more important came: that is no failure of the training.
    - action: Ignore
      onPodConditions:
        - {type: DisruptionTarget, status: "True"}
    # The configuration, a file or the data is wrong: no further try can succeed.
    - action: FailJob
      onExitCodes: {containerName: trainer, operator: In, values: [2]}
    # Told to stop, as when the node of another pod of the training is drained. It has saved, and goes on.
    - action: Ignore
      onExitCodes: {containerName: trainer, operator: In, values: [143]}
{{- if and .part.activeDeadlineSeconds (eq .part.controller "Job") }}
activeDeadlineSeconds: {{ int .part.activeDeadlineSeconds }}
{{- end }}
template:
  {{- include "grpo.trainerPod" . | nindent 2 }}
{{- end -}}

{{/* Of a JobSet. */}}
{{- define "grpo.failurePolicy" -}}
maxRestarts: {{ int .Values.trainer.maxRestarts }}
rules:
  - {name: wrongConfiguration, action: FailJobSet, onJobFailureReasons: [PodFailurePolicy]}
{{- end -}}

{{/* Kueue gives the pods of what it starts the node labels and tolerations of a flavor. A Job that runs takes no others, so
an upgrade sends back what it has. Arguments: root, api, kind, name; part, which is changed. Adds live: the Job or JobSet as
the cluster has it, or empty. */}}
{{- define "grpo.keepFlavor" -}}
{{- $live := dict -}}
{{- if (.root.Values.kueue).queueName -}}
{{- $live = default $live (lookup .api .kind .root.Release.Namespace .name) -}}
{{- end -}}
{{- $_ := set . "live" $live -}}
{{- if eq (toString (dig "spec" "suspend" "" $live)) "false" -}}
{{- $job := $live.spec -}}
{{- range dig "replicatedJobs" (list) $job -}}{{- $job = .template.spec -}}{{- end -}}
{{- range $key := list "nodeSelector" "tolerations" -}}
{{- with dig "template" "spec" $key nil $job -}}{{- $_ := set $.part $key . -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "grpo.queueLabels" -}}
{{- with (.root.Values.kueue).queueName }}
kueue.x-k8s.io/queue-name: {{ . | quote }}
{{- end }}
{{- with (.root.Values.kueue).priorityClass }}
kueue.x-k8s.io/priority-class: {{ . | quote }}
{{- end }}
{{- end -}}
