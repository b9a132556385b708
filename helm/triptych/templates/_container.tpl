{{- define "triptych.container" -}}
{{- $config := .it.config }}{{ $ports := include "triptych.ports" .it.role | fromJson }}{{ $isGateway := eq .it.role "gateway" -}}
name: {{ .it.role }}
image: {{ include "triptych.image" (list .root .it.role $config.image) | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
envFrom:
  - configMapRef: {name: {{ .it.name }}}
{{- with include "triptych.env" . | trim }}
env: {{- . | nindent 2 }}
{{- end }}
ports:
  - {name: {{ $isGateway | ternary "http" "grpc" }}, containerPort: {{ $ports.main }}}
  {{- if $isGateway }}
  - {name: grpc, containerPort: {{ $ports.grpc }}}
  {{- else }}
  - {name: health, containerPort: {{ $ports.health }}}
  - {name: metrics, containerPort: {{ $ports.metrics }}}
  {{- end }}
{{- include "triptych.probes" . }}
lifecycle:
  preStop: {sleep: {seconds: {{ .root.Values.preStopSeconds }}}}
resources: {{- include "triptych.resources" .it | nindent 2 }}
securityContext: {{- include "triptych.containerSecurity" . | nindent 2 }}
volumeMounts: {{- include "triptych.volumeMounts" . | nindent 2 }}
{{- end }}

{{/* Settings from Secrets, the place of the model, and what the values add. */}}
{{- define "triptych.env" -}}
{{- range $setting, $ref := .it.config.secretSettings }}
- name: TRIPTYCH_{{ upper $.it.role }}_{{ upper $setting }}
  valueFrom: {secretKeyRef: {name: {{ $ref.name | quote }}, key: {{ $ref.key | quote }}}}
{{- end }}
{{- if .it.model }}{{ include "triptych.modelEnv" (list .root .it.entry) }}{{ end }}
{{- with .it.config.env }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Fetched files are ephemeral storage where each pod has its own, so that a limit would evict a pod with a large model. Argument: a component. */}}
{{- define "triptych.resources" -}}
{{- $resources := deepCopy .config.resources }}
{{- if and .model (eq .entry.storage.type "cache") }}
{{- $_ := set $resources "limits" (omit ($resources.limits | default dict) "ephemeral-storage") }}
{{- end }}
{{- toYaml $resources }}
{{- end }}
