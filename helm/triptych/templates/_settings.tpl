{{/* A setting as the text of an environment variable. toJson writes large numbers without an exponent. */}}
{{- define "triptych.settingText" -}}
{{- if kindIs "string" . }}{{ . }}{{ else if kindIs "slice" . }}{{ join "," . }}{{ else }}{{ toJson . }}{{ end }}
{{- end }}

{{/* Settings that the chart determines for a component of a model, as JSON. Argument: list $ component. */}}
{{- define "triptych.modelSettings" -}}
{{- $root := index . 0 }}{{ $it := index . 1 }}{{ $ports := include "triptych.ports" $it.role | fromJson }}
{{- $set := dict "model" (include "triptych.modelSource" $it.entry) "served_model_name" $it.entry.servedModelName }}
{{- $set = merge $set (dict "health_port" $ports.health "metrics_port" $ports.metrics) }}
{{- with $it.entry.maxModelLen }}{{ $_ := set $set "max_model_len" . }}{{ end }}
{{- if ne $it.role "encoder" }}{{ with $it.entry.task }}{{ $_ := set $set "task" . }}{{ end }}
{{- with include "triptych.targets" (list $root "encoder" $it.model) }}{{ $_ := set $set "encoder_addresses" . }}{{ end }}
{{- end }}
{{- toJson $set }}
{{- end }}

{{/*
ConfigMap with the environment of a component. Argument: dict "root" $ "it" component "set" settings that the chart determines.
Those of the component win over those of every service, and what the chart determines over both.
*/}}
{{- define "triptych.config" -}}
{{- $settings := mergeOverwrite (deepCopy .root.Values.settings) (.it.config.settings | default dict) .set }}
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
