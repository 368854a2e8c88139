{{/* Pieces that all pods share. Arguments of most: root, component, part (the values of the component). */}}

{{- define "grpo.podSecurity" -}}
runAsNonRoot: true
{{- range $key, $value := .root.Values.podSecurityContext }}
{{- if not (has (toJson $value) (list "null" "[]")) }}
{{ $key }}: {{ toJson $value }}
{{- end }}
{{- end }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "grpo.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
  {{- with .part.addCapabilities }}
  add: {{ toJson . }}
  {{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* No version and no chart among a pod's labels: an upgrade that changes nothing of a pod leaves it running. */}}
{{- define "grpo.podMetadata" -}}
labels:
  {{- include "grpo.selector" . | nindent 2 }}
  {{- with .root.Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- with .part.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- $annotations := mustMergeOverwrite (deepCopy (default (dict) .part.podAnnotations)) (default (dict) .annotations) }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The start of every pod's spec. */}}
{{- define "grpo.podSpec" -}}
serviceAccountName: {{ include "grpo.serviceAccount" .root | quote }}
automountServiceAccountToken: false
# Service variables such as GRPO_REWARD_PORT=tcp://… would be read as settings.
enableServiceLinks: false
# The pause process is the first one: it reaps what is left over, and signals have their usual meaning.
shareProcessNamespace: true
terminationGracePeriodSeconds: {{ int .part.terminationGracePeriodSeconds }}
{{- $secrets := list }}
{{- range concat (default (list) (.root.Values.global).imagePullSecrets) (default (list) .root.Values.image.pullSecrets) }}
{{- if kindIs "string" . }}{{ $secrets = append $secrets . }}{{ else }}{{ $secrets = append $secrets .name }}{{ end }}
{{- end }}
{{- with $secrets | uniq }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- with .root.Values.dnsPolicy }}
dnsPolicy: {{ . }}
{{- end }}
{{- with .root.Values.dnsConfig }}
dnsConfig:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.runtimeClassName }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- with .part.schedulerName }}
schedulerName: {{ . | quote }}
{{- end }}
{{- with .part.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .part.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range . }}
  {{- /* Without a selector Kubernetes would count no pod at all. */}}
  {{- $own := dict "labelSelector" (dict "matchLabels" (fromYaml (include "grpo.selector" $))) }}
  - {{- toYaml (ternary . (merge (deepCopy .) $own) (hasKey . "labelSelector")) | nindent 4 }}
  {{- end }}
{{- end }}
{{- with .part.resourceClaims }}
resourceClaims:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- include "grpo.podSecurity" . | nindent 2 }}
  {{- if has .component (list "rollout" "rollout-worker" "trainer") }}
  # Data connections of a weight push take ports of this range; the NetworkPolicy opens the same.
  sysctls:
    - name: net.ipv4.ip_local_port_range
      value: "{{ .root.Values.networkPolicy.dataPorts.first }} {{ .root.Values.networkPolicy.dataPorts.last }}"
  {{- end }}
{{- end -}}

{{- define "grpo.resources" -}}
{{- $devices := deepCopy (default (dict) .part.extraResources) -}}
{{- if gt (int .part.gpus) 0 -}}{{- $_ := set $devices .part.gpuResource (int .part.gpus) -}}{{- end -}}
resources:
  requests:
    {{- toYaml (mustMergeOverwrite (deepCopy (default (dict) (.part.resources).requests)) $devices) | nindent 4 }}
  limits:
    {{- toYaml (mustMergeOverwrite (deepCopy (default (dict) (.part.resources).limits)) $devices) | nindent 4 }}
  {{- include "grpo.claims" . | indent 2 }}
{{- end -}}

{{/* The pod's claims, as one of its containers takes them. */}}
{{- define "grpo.claims" -}}
{{- with .part.resourceClaims }}
claims:
  {{- range . }}
  - name: {{ .name | quote }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Arguments: root, name of the variable; key of the secret, if it is not that of the API token; optional */}}
{{- define "grpo.token" -}}
- name: {{ .name }}
  valueFrom:
    secretKeyRef:
      name: {{ .root.Values.auth.existingSecret | quote }}
      key: {{ default .root.Values.auth.key .key | quote }}
      {{- if .optional }}
      optional: true
      {{- end }}
{{- end -}}

{{/* Environment of every container. Everything that is written goes to a mount. */}}
{{- define "grpo.env" -}}
{{- if ne .component "prepare" }}
{{ include "grpo.token" (dict "root" .root "name" "GRPO_API_TOKEN") }}
{{ include "grpo.token" (dict "root" .root "name" "GRPO_API_TOKEN_ALSO" "key" .root.Values.auth.alsoKey "optional" true) }}
{{- end }}
- name: HOME
  value: /tmp
- name: XDG_CACHE_HOME
  value: /cache
- name: HF_HOME
  value: {{ ternary (printf "%s/huggingface" .root.Values.storage.models.mountPath) "/cache/huggingface" (eq (include "grpo.modelsMode" .) "write") }}
{{- end -}}

{{/* What a component does with the volume of models: nothing, read or write. It writes the Hugging Face cache. */}}
{{- define "grpo.modelsMode" -}}
{{- if and .root.Values.storage.models.enabled (ne .component "reward") -}}
{{- ternary "read" "write" (and .root.Values.storage.models.readOnly (ne .component "prepare")) -}}
{{- end -}}
{{- end -}}

{{/* What a component sees of tls.existingSecret: who serves with it the key as well, who calls those servers the authority,
and nobody else anything. */}}
{{- define "grpo.tlsItems" -}}
{{- if not .root.Values.tls.existingSecret -}}
{{- else if has .component (list "rollout" "rollout-worker") -}}
all
{{- else if has .component (list "trainer" "test") -}}
ca.crt
{{- end -}}
{{- end -}}
{{- define "grpo.tlsVolume" -}}
{{- with include "grpo.tlsItems" . }}
- name: tls
  secret:
    secretName: {{ $.root.Values.tls.existingSecret | quote }}
    # Of root and fsGroup; without an fsGroup the user of the pod is among the others.
    defaultMode: {{ ternary "0444" "0440" (kindIs "invalid" ($.root.Values.podSecurityContext).fsGroup) }}
    {{- if ne . "all" }}
    # A secret of a public authority has none.
    optional: true
    items: [{key: {{ . }}, path: {{ . }}}]
    {{- end }}
{{- end }}
{{- end -}}

{{/* The volume of the runs in a pod. One claim for both is one volume: with two of one claim a kubelet before 1.35 waits for
ever. */}}
{{- define "grpo.runsVolume" -}}
{{- $storage := .root.Values.storage -}}
{{- $claims := list -}}
{{- range $name := list "runs" "models" -}}
{{- $claims = append $claims (include "grpo.claim" (dict "root" $.root "name" $name "volume" (index $storage $name))) -}}
{{- end -}}
{{- ternary "models" "runs" (and (default false $storage.models.enabled) (eq (len (uniq $claims)) 1)) -}}
{{- end -}}

{{/* Arguments: volume, of storage; name, readOnly */}}
{{- define "grpo.storageMount" -}}
- name: {{ .name }}
  mountPath: {{ .volume.mountPath }}
  {{- with .volume.subPath }}
  subPath: {{ . | quote }}
  {{- end }}
  {{- if .readOnly }}
  readOnly: true
  {{- end }}
{{- end -}}

{{- define "grpo.volumeMounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: cache, mountPath: /cache}
- {name: shm, mountPath: /dev/shm}
{{- with include "grpo.modelsMode" . }}
{{ include "grpo.storageMount" (dict "name" "models" "volume" $.root.Values.storage.models "readOnly" (eq . "read")) }}
{{- end }}
{{- if and .root.Values.storage.runs.enabled (eq .component "trainer") }}
{{ include "grpo.storageMount" (dict "name" (include "grpo.runsVolume" .) "volume" .root.Values.storage.runs) }}
{{- end }}
{{- if include "grpo.tlsItems" . }}
- {name: tls, mountPath: /etc/grpo/tls, readOnly: true}
{{- end }}
{{- with .part.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "grpo.volumes" -}}
- name: tmp
  emptyDir: {sizeLimit: {{ .part.tmpSize }}}
- name: cache
  emptyDir: {sizeLimit: {{ .part.cacheSize }}}
- name: shm
  emptyDir: {medium: Memory, sizeLimit: {{ .part.shmSize }}}
{{- $writesRuns := and .root.Values.storage.runs.enabled (eq .component "trainer") }}
{{- $oneVolume := and $writesRuns (eq (include "grpo.runsVolume" .) "models") }}
{{- with include "grpo.modelsMode" . }}
- name: models
  persistentVolumeClaim:
    claimName: {{ include "grpo.claim" (dict "root" $.root "name" "models" "volume" $.root.Values.storage.models) | quote }}
    {{- if and (eq . "read") (not $oneVolume) }}
    readOnly: true
    {{- end }}
{{- end }}
{{- if and $writesRuns (not $oneVolume) }}
- name: runs
  persistentVolumeClaim:
    claimName: {{ include "grpo.claim" (dict "root" .root "name" "runs" "volume" .root.Values.storage.runs) | quote }}
{{- end }}
{{- include "grpo.tlsVolume" . }}
{{- with .part.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Arguments: part, scheme, and what readiness asks of a server beside being alive. The routes answer from memory, whatever the engine does. */}}
{{- define "grpo.probes" -}}
{{- if .part.probes.enabled -}}
startupProbe:
  httpGet: {path: /livez, port: http, scheme: {{ .scheme }}}
  {{- toYaml .part.probes.startup | nindent 2 }}
livenessProbe:
  httpGet: {path: /livez, port: http, scheme: {{ .scheme }}}
  {{- toYaml .part.probes.liveness | nindent 2 }}
readinessProbe:
  httpGet: {path: {{ printf "/readyz%s" (default "" .readyQuery) | quote }}, port: http, scheme: {{ .scheme }}}
  {{- toYaml .part.probes.readiness | nindent 2 }}
{{- end -}}
{{- end -}}

{{- define "grpo.preStop" -}}
{{- if gt (int .part.preStopSeconds) 0 -}}
lifecycle:
  preStop:
    exec:
      command: [sleep, {{ int .part.preStopSeconds | quote }}]
{{- end -}}
{{- end -}}

{{/* The marker that the prepare job leaves, named after what it did: another script is waited for anew. */}}
{{- define "grpo.prepareHash" -}}
{{- toJson (list .Values.prepare.script (default (list) .Values.prepare.extraEnv)) | sha256sum | trunc 8 -}}
{{- end -}}
{{- define "grpo.prepared" -}}
{{- printf "%s/.prepared-%s-%s" .Values.storage.models.mountPath (include "grpo.fullname" .) (include "grpo.prepareHash" .) -}}
{{- end -}}

{{/* Without the name of the prepare job, which a change of the trainer alone changes: the servers would start again. */}}
{{- define "grpo.waitForPrepare" -}}
{{- if .root.Values.prepare.enabled -}}
- name: wait-for-prepare
  image: {{ include "grpo.image" . }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  command: [sh, -c]
  args:
    - |
      waited=0
      until [ -e "$MARKER" ]; do
        if [ "$waited" -ge "$LIMIT" ]; then
          echo "error: $MARKER is not there after $LIMIT s; look at: kubectl logs -n {{ .root.Release.Namespace }} -l {{ include "grpo.selector" (dict "root" .root "component" "prepare") | replace ": " "=" | replace "\n" "," | replace "\"" "" }}" >&2
          exit 1
        fi
        [ $((waited % 60)) -ne 0 ] || echo "waiting for the prepare job"
        sleep 2
        waited=$((waited + 2))
      done
  env:
    - {name: MARKER, value: {{ include "grpo.prepared" .root | quote }}}
    - {name: LIMIT, value: {{ int .root.Values.prepare.timeoutSeconds | quote }}}
    # The images of engines ask for all GPUs of the node, and where NVIDIA's runtime is the default they would get them.
    - {name: NVIDIA_VISIBLE_DEVICES, value: void}
  resources:
    {{- toYaml .root.Values.prepare.waitResources | nindent 4 }}
  securityContext:
    {{- include "grpo.containerSecurity" . | nindent 4 }}
  volumeMounts:
    {{- include "grpo.storageMount" (dict "name" "models" "volume" .root.Values.storage.models "readOnly" true) | nindent 4 }}
{{- end -}}
{{- end -}}
