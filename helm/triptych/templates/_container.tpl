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
{{- if not .it.computesOnly }}
ports:
  {{- /* A name may stand once in a pod. */}}
  {{- if $isGateway }}
  - {name: http, containerPort: {{ $ports.main }}}
  - {name: grpc, containerPort: {{ $ports.grpc }}}
  {{- else if .root.Values.inferenceGateway.enabled }}
  {{- range $ports }}
  - {containerPort: {{ . }}}
  {{- end }}
  {{- else }}
  - {name: grpc, containerPort: {{ $ports.main }}}
  - {name: health, containerPort: {{ $ports.health }}}
  - {name: metrics, containerPort: {{ $ports.metrics }}}
  {{- end }}
  {{- if include "triptych.publishes" . }}
  - {name: kv-events, containerPort: {{ .root.Values.inferenceGateway.kvEvents.port }}}
  - {name: kv-replay, containerPort: {{ .root.Values.inferenceGateway.kvEvents.replayPort }}}
  {{- end }}
{{- include "triptych.probes" . }}
{{- if or $isGateway (not .root.Values.inferenceGateway.enabled) }}
lifecycle:
  preStop: {sleep: {seconds: {{ .root.Values.preStopSeconds }}}}
{{- else }}
# A sidecar: it starts before the gateway, and is ended when the gateway has ended.
restartPolicy: Always
{{- end }}
{{- end }}
resources: {{- include "triptych.resources" .it | nindent 2 }}
securityContext: {{- include "triptych.containerSecurity" . | nindent 2 }}
volumeMounts: {{- include "triptych.volumeMounts" . | nindent 2 }}
{{- end }}

{{/* Whether a container publishes KV events. Argument: dict with root and it. */}}
{{- define "triptych.publishes" -}}
{{- if and (eq .it.role "engine") .root.Values.inferenceGateway.enabled .root.Values.inferenceGateway.kvEvents.enabled }}yes{{ end }}
{{- end }}

{{/* Settings from Secrets, the place of the model, and what the values add. */}}
{{- define "triptych.env" -}}
{{- range $setting, $ref := .it.config.secretSettings }}
- name: TRIPTYCH_{{ upper $.it.role }}_{{ upper $setting }}
  valueFrom: {secretKeyRef: {name: {{ $ref.name | quote }}, key: {{ $ref.key | quote }}}}
{{- end }}
{{- if .it.model }}{{ include "triptych.modelEnv" (list .root .it.entry) }}{{ end }}
{{- if include "triptych.publishes" . }}
- {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
# As llm-d's endpoint picker names the pod.
- name: TRIPTYCH_ENGINE_KV_EVENTS_TOPIC
  value: {{ printf "kv@$(POD_IP):%v@%s" (include "triptych.ports" "gateway" | fromJson).main .it.entry.servedModelName | quote }}
{{- end }}
{{- if include "triptych.hasNodes" .it }}
{{ include "triptych.nodeEnv" . }}
{{- end }}
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
