{{/* The reward server: its environment, container and pod. Arguments: root, component, part */}}

{{- define "grpo.rewardPluginPaths" -}}
{{- $paths := list -}}
{{- range $name := keys (default (dict) .Values.reward.plugins) | sortAlpha -}}
{{- $paths = append $paths (printf "/etc/grpo/plugins/%s" $name) -}}
{{- end -}}
{{- join ":" (concat (default (list) (.Values.reward.settings).plugin) $paths) -}}
{{- end -}}

{{/* Settings become their environment variables; lists are joined as the server splits them, models as JSON. */}}
{{- define "grpo.rewardEnv" -}}
{{- $settings := default (dict) .part.settings -}}
{{ include "grpo.env" . }}
- {name: GRPO_REWARD_HOST, value: {{ .root.Values.listenAddress | quote }}}
- {name: GRPO_REWARD_PORT, value: "8001"}
- {name: GRPO_REWARD_EXECUTOR, value: {{ .part.executor }}}
{{- range $key, $value := omit $settings "plugin" "reward_model" }}
{{- if not (kindIs "invalid" $value) }}
- name: GRPO_REWARD_{{ upper $key }}
  value: {{ ternary (join "," (kindIs "slice" $value | ternary $value (list))) (kindIs "float64" $value | ternary (toJson $value) (toString $value)) (kindIs "slice" $value) | quote }}
{{- end }}
{{- end }}
{{- with $settings.reward_model }}
- {name: GRPO_REWARD_REWARD_MODEL, value: {{ ternary (toJson .) (toString .) (kindIs "slice" .) | quote }}}
{{- end }}
{{- with include "grpo.rewardPluginPaths" .root }}
- {name: GRPO_REWARD_PLUGIN, value: {{ . | quote }}}
{{- end }}
{{- if and (not (hasKey $settings "workers")) (eq .part.executor "process") }}
# As many workers as cores asked for, not as the node has.
- name: GRPO_REWARD_WORKERS
  valueFrom:
    resourceFieldRef: {containerName: reward, resource: requests.cpu}
{{- end }}
{{- if eq .part.executor "ray" }}
- {name: RAY_ADDRESS, value: {{ printf "%s-head-svc.%s.svc:6379" (include "grpo.rayCluster" .root) .root.Release.Namespace }}}
{{- include "grpo.rayEnv" . | nindent 0 }}
{{- end }}
{{- with .part.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Ray runs what it is sent, so it asks for a token. Rewards could read it, so it is not that of the API. */}}
{{- define "grpo.rayEnv" -}}
- {name: RAY_AUTH_MODE, value: token}
{{ include "grpo.token" (dict "root" .root "name" "RAY_AUTH_TOKEN" "key" .root.Values.auth.rayKey) }}
{{- end -}}

{{- define "grpo.rewardPod" -}}
metadata:
  {{- $plugins := toJson (default (dict) .part.plugins) }}
  {{- include "grpo.podMetadata" (merge (dict "annotations" (dict "checksum/plugins" ($plugins | sha256sum))) .) | nindent 2 }}
spec:
  {{- include "grpo.podSpec" . | nindent 2 }}
  containers:
    - name: reward
      image: {{ include "grpo.image" . }}
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      {{- if eq .part.executor "ray" }}
      # A node of Ray's cluster without a CPU of its own: rewards run on the others. What asks for no CPU may run here, too.
      command: [sh, -c, 'env -u GRPO_API_TOKEN -u GRPO_API_TOKEN_ALSO ray start --address="$RAY_ADDRESS" --num-cpus=0 --disable-usage-stats && exec grpo-reward serve']
      {{- else }}
      command: [grpo-reward, serve]
      {{- end }}
      env:
        {{- include "grpo.rewardEnv" . | nindent 8 }}
      ports:
        - {name: http, containerPort: 8001, protocol: TCP}
      {{- include "grpo.probes" (dict "part" .part "scheme" "HTTP") | nindent 6 }}
      {{- include "grpo.preStop" . | nindent 6 }}
      {{- include "grpo.resources" . | nindent 6 }}
      securityContext:
        {{- include "grpo.containerSecurity" . | nindent 8 }}
      volumeMounts:
        {{- include "grpo.volumeMounts" . | nindent 8 }}
        {{- if .part.plugins }}
        - {name: plugins, mountPath: /etc/grpo/plugins, readOnly: true}
        {{- end }}
  volumes:
    {{- include "grpo.volumes" . | nindent 4 }}
    {{- if .part.plugins }}
    - name: plugins
      configMap: {name: {{ include "grpo.fullname" .root }}-reward-plugins}
    {{- end }}
{{- end -}}
