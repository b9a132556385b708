{{/* A setting as the text of an environment variable. toJson writes large numbers without an exponent. */}}
{{- define "triptych.settingText" -}}
{{- if kindIs "string" . }}{{ . }}{{ else if kindIs "slice" . }}{{ join "," . }}{{ else }}{{ toJson . }}{{ end }}
{{- end }}

{{/* Settings that the chart determines for the gateway, as JSON. Argument: $. */}}
{{- define "triptych.gatewaySettings" -}}
{{- $set := dict "frontend_addresses" (include "triptych.targets" (list . "frontend" "")) }}
{{- if include "triptych.scalesToZero" . }}
{{- $names := list }}{{ range .Values.models }}{{ $names = append $names (.servedModelName | default .name) }}{{ end }}
{{- $_ := set $set "expected_models" $names }}{{ $_ := set $set "model_wait_s" .Values.keda.modelWaitSeconds }}
{{- end }}
{{- if .Values.gateway.files.enabled }}{{ $_ := set $set "files_dir" "/var/lib/triptych/files" }}{{ end }}
{{- if .Values.gateway.httpsSecret }}{{ $_ := set $set "https_dir" "/etc/triptych/https" }}{{ end }}
{{- if not (include "triptych.keyed" .) }}
{{- $_ := set $set "allowed_hosts" (include "triptych.allowedHosts" . | fromJsonArray) }}
{{- else if .Values.inferenceGateway.enabled }}{{ $_ := set $set "load_metrics_without_key" true }}
{{- end }}
{{- with .Values.gateway.apiKeysSecret }}{{ if .name }}
{{- $_ := set $set "api_keys_file" (printf "/etc/triptych/api-keys/%s" .key) }}
{{- end }}{{ end }}
{{- toJson $set }}
{{- end }}

{{/* Settings that the chart determines for a service of a model, as JSON. Argument: list $ component. */}}
{{- define "triptych.modelSettings" -}}
{{- $root := index . 0 }}{{ $it := index . 1 }}{{ $ports := include "triptych.ports" $it.role | fromJson }}
{{- $set := dict "model" (include "triptych.modelSource" $it.entry) "served_model_name" $it.entry.servedModelName }}
{{- $set = merge $set (dict "health_port" $ports.health "metrics_port" $ports.metrics) }}
{{- with $it.entry.maxModelLen }}{{ $_ := set $set "max_model_len" . }}{{ end }}
{{- if ne $it.role "encoder" }}{{ with $it.entry.task }}{{ $_ := set $set "task" . }}{{ end }}
{{- with include "triptych.targets" (list $root "encoder" $it.model) }}{{ $_ := set $set "encoder_addresses" . }}{{ end }}
{{- end }}
{{- if eq $it.role "frontend" }}{{ $_ := set $set "engine_addresses" (include "triptych.targets" (list $root "engine" $it.model)) }}{{ end }}
{{- if and (eq $it.role "engine") $it.entry.prefill.enabled }}
{{- if eq (include "triptych.component" $it) "prefill" }}{{ $_ := set $set "kv_role" "prefill" }}
{{- else }}
{{- $_ := set $set "kv_role" "decode" }}{{ $_ := set $set "kv_peer_addresses" (include "triptych.targets" (list $root "prefill" $it.model)) }}
{{- end }}
{{- end }}
{{- if include "triptych.hasNodes" $it }}
{{- $_ := set $set "node_key_file" (printf "/etc/triptych/node-key/%s" $it.config.nodeKeySecret.key) }}
{{- end }}
{{- if include "triptych.publishes" (dict "root" $root "it" $it) }}
{{- $kv := $root.Values.inferenceGateway.kvEvents }}
{{- $_ := set $set "kv_events" (printf "tcp://*:%v" $kv.port) }}{{ $_ := set $set "kv_events_replay" (printf "tcp://*:%v" $kv.replayPort) }}
{{- end }}
{{- toJson $set }}
{{- end }}

{{/*
ConfigMap with the environment of a service. Argument: dict "root" $ "it" component or companion.
Those of the component win over those of every service, and what the chart determines over both.
*/}}
{{- define "triptych.config" -}}
{{- $set := "" }}
{{- if .it.model }}{{ $set = include "triptych.modelSettings" (list .root .it) }}{{ else }}{{ $set = include "triptych.gatewaySettings" .root }}{{ end }}
{{- $settings := mergeOverwrite (deepCopy .root.Values.settings) (.it.config.settings | default dict) (fromJson $set) }}
{{- if .root.Values.tls.enabled }}{{ $_ := set $settings "tls_dir" "/etc/triptych/tls" }}
{{- else if ne .it.role "gateway" }}{{ $_ := set $settings "insecure_grpc" true }}{{ end -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ .it.name }}
  labels: {{- include "triptych.labels" (list .root .it) | nindent 4 }}
data:
{{- range $name, $value := $settings }}
  TRIPTYCH_{{ upper $.it.role }}_{{ upper $name }}: {{ include "triptych.settingText" $value | quote }}
{{- end }}
{{- end }}
