{{/* Names, labels and the addresses that follow from them. Names leave room for what Kubernetes and we append. */}}

{{- define "grpo.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 32 | trimSuffix "-" -}}
{{- end -}}

{{/* One that is too long is cut, and gets a hash: two releases whose names begin alike would share their claims. */}}
{{- define "grpo.fullname" -}}
{{- $name := include "grpo.name" . -}}
{{- $whole := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 34 | trimSuffix "-" -}}
{{- else if gt (len $whole) 34 -}}
{{- printf "%s-%s" ($whole | trunc 25 | trimSuffix "-") ($whole | sha256sum | trunc 8) -}}
{{- else -}}
{{- $whole | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What a selector holds. Never changed: selectors are immutable. Argument: dict "root" $ "component" "rollout" */}}
{{- define "grpo.selector" -}}
app.kubernetes.io/name: {{ include "grpo.name" .root | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "grpo.labels" -}}
{{ include "grpo.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: grpo-services
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* metadata of an object. Arguments: root, component, name */}}
{{- define "grpo.metadata" -}}
name: {{ .name | quote }}
namespace: {{ .root.Release.Namespace | quote }}
labels:
  {{- include "grpo.labels" . | nindent 2 }}
{{- end -}}

{{/* That of a set of servers itself, not of its pods. Arguments: part beside those of grpo.metadata */}}
{{- define "grpo.workloadMetadata" -}}
{{ include "grpo.metadata" . }}
  {{- with .part.workloadLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .part.workloadAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "grpo.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "grpo.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Arguments: root, part. rollout and trainer have an image with and one without CUDA. */}}
{{- define "grpo.image" -}}
{{- $registry := or (.root.Values.global).imageRegistry .root.Values.image.registry "" -}}
{{- $devices := or (gt (int .part.gpus) 0) (not (empty .part.resourceClaims)) -}}
{{- $variant := ternary "" (ternary "-gpu" "-cpu" $devices) (eq .component "reward") -}}
{{- $tag := default (printf "%s%s" .root.Chart.AppVersion $variant) .part.image.tag -}}
{{- if .part.image.digest -}}
{{- printf "%s/%s@%s" (trimSuffix "/" $registry) .part.image.repository .part.image.digest -}}
{{- else -}}
{{- printf "%s/%s:%s" (trimSuffix "/" $registry) .part.image.repository $tag -}}
{{- end -}}
{{- end -}}

{{- define "grpo.claim" -}}
{{- default (printf "%s-%s" (include "grpo.fullname" .root) .name) .volume.existingClaim -}}
{{- end -}}

{{/* A run that is stopped (trainer.enabled=false) keeps its volumes: it has a run file still. Arguments: root, name */}}
{{- define "grpo.makesClaim" -}}
{{- $volume := index .root.Values.storage .name -}}
{{- $used := or .root.Values.trainer.run (and (eq .name "models") .root.Values.rollout.enabled) -}}
{{- if and $used $volume.enabled (not $volume.existingClaim) }}true{{ end -}}
{{- end -}}

{{- define "grpo.spansNodes" -}}
{{- if gt (int .Values.rollout.engine.nodes) 1 }}true{{ end -}}
{{- end -}}

{{/* The set of rollout servers, and the headless service that names each of them. LeaderWorkerSet makes its own. */}}
{{- define "grpo.rolloutSet" -}}
{{- printf "%s-rollout%s" (include "grpo.fullname" .) (ternary "-engine" "" (eq (include "grpo.spansNodes" .) "true")) -}}
{{- end -}}
{{- define "grpo.rolloutPods" -}}
{{- if include "grpo.spansNodes" . -}}
{{- include "grpo.rolloutSet" . -}}
{{- else -}}
{{- printf "%s-rollout-pods" (include "grpo.fullname" .) -}}
{{- end -}}
{{- end -}}

{{/* One URL for every rollout server, as a YAML list: a push must reach each, so a virtual address is not enough. */}}
{{- define "grpo.rolloutUrls" -}}
{{- $root := . -}}
{{- $scheme := ternary "https" "http" .Values.tls.serveRollout -}}
{{- range $index := until (int .Values.rollout.replicas) }}
- {{ printf "%s://%s-%d.%s.%s.svc:8000" $scheme (include "grpo.rolloutSet" $root) $index (include "grpo.rolloutPods" $root) $root.Release.Namespace }}
{{- end }}
{{- end -}}

{{- define "grpo.rewardUrl" -}}
{{- printf "http://%s-reward.%s.svc:8001" (include "grpo.fullname" .) .Release.Namespace -}}
{{- end -}}
