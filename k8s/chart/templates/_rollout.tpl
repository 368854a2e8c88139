{{/* One rollout server's container and pod. Arguments: root, component, part; group: it is one of an engine over nodes. */}}

{{- define "grpo.rolloutArgs" -}}
- serve
- {{ .Values.rollout.model | quote }}
- {{ printf "--host=%s" .Values.listenAddress | quote }}
- --port=8000
{{- if .Values.tls.serveRollout }}
- --ssl-certfile=/etc/grpo/tls/tls.crt
- --ssl-keyfile=/etc/grpo/tls/tls.key
{{- /* A renewed secret changes the files below the server. */}}
- --enable-ssl-refresh
{{- end }}
{{- range .Values.rollout.args }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{/* How the pods of one engine find each other. LeaderWorkerSet sets the variables. Arguments: root, rank */}}
{{- define "grpo.engineArgs" -}}
{{- $engine := .root.Values.rollout.engine -}}
- --distributed-executor-backend=mp
- --nnodes={{ $engine.nodes }}
- --node-rank={{ .rank }}
- --master-addr=$(LWS_LEADER_ADDRESS)
- --master-port={{ $engine.port }}
- --distributed-timeout-seconds={{ int $engine.joinTimeoutSeconds }}
- --cpu-distributed-timeout-seconds={{ int $engine.joinTimeoutSeconds }}
{{- end -}}

{{- define "grpo.rolloutContainer" -}}
name: rollout
image: {{ include "grpo.image" . }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
command: [grpo-rollout]
args:
  {{- include "grpo.rolloutArgs" .root | nindent 2 }}
  {{- if eq (default "" .group) "leader" }}
  {{- include "grpo.engineArgs" (dict "root" .root "rank" "0") | nindent 2 }}
  {{- else if eq (default "" .group) "worker" }}
  {{- include "grpo.engineArgs" (dict "root" .root "rank" "$(LWS_WORKER_INDEX)") | nindent 2 }}
  - --headless
  {{- end }}
env:
  {{- include "grpo.env" . | nindent 2 }}
  - {name: VLLM_CACHE_ROOT, value: /cache/vllm}
  - {name: TRITON_CACHE_DIR, value: /cache/triton}
  - {name: TORCHINDUCTOR_CACHE_DIR, value: /cache/inductor}
  - {name: VLLM_NO_USAGE_STATS, value: "1"}
  {{- if .root.Values.tls.serveRollout }}
  # A mounted secret is replaced as a folder: whoever watches the files sees it once, whoever looks sees it always.
  - {name: WATCHFILES_FORCE_POLLING, value: "true"}
  - {name: WATCHFILES_POLL_DELAY_MS, value: "10000"}
  {{- end }}
  {{- with .part.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- if ne (default "" .group) "worker" }}
ports:
  - {name: http, containerPort: 8000, protocol: TCP}
{{- $part := .part }}
{{- if eq (default "" .group) "leader" }}
{{- /* Nothing answers before the others have joined. */}}
{{- $startup := .part.probes.startup }}
{{- $joining := div (add (int .part.engine.joinTimeoutSeconds) (int $startup.periodSeconds) -1) (int $startup.periodSeconds) }}
{{- $startup = merge (dict "failureThreshold" (add (int $startup.failureThreshold) $joining)) $startup }}
{{- $part = merge (dict "probes" (merge (dict "startup" $startup) .part.probes)) .part }}
{{- end }}
{{- $wait := .part.weightsWaitSeconds }}
{{- if kindIs "invalid" $wait }}{{ $wait = ternary 600 0 .root.Values.trainer.enabled }}{{ end }}
{{- $query := printf "?weights=required&wait_s=%d" (int $wait) }}
{{- include "grpo.probes" (dict "part" $part "scheme" (ternary "HTTPS" "HTTP" .root.Values.tls.serveRollout) "readyQuery" $query) | nindent 0 }}
{{- include "grpo.preStop" . | nindent 0 }}
{{- end }}
{{ include "grpo.resources" . }}
securityContext:
  {{- include "grpo.containerSecurity" . | nindent 2 }}
volumeMounts:
  {{- include "grpo.volumeMounts" . | nindent 2 }}
{{- end -}}

{{- define "grpo.rolloutPod" -}}
metadata:
  {{- include "grpo.podMetadata" . | nindent 2 }}
spec:
  {{- include "grpo.podSpec" . | nindent 2 }}
  {{- with include "grpo.waitForPrepare" . }}
  initContainers:
    {{- . | nindent 4 }}
  {{- end }}
  containers:
    -
      {{- include "grpo.rolloutContainer" . | nindent 6 }}
  volumes:
    {{- include "grpo.volumes" . | nindent 4 }}
{{- end -}}
