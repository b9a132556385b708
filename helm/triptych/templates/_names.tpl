{{- define "triptych.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if .Values.fullnameOverride }}{{ .Values.fullnameOverride }}
{{- else if contains $name .Release.Name }}{{ .Release.Name }}
{{- else }}{{ .Release.Name }}-{{ $name }}{{ end }}
{{- end }}

{{/* Labels that select the pods of a component. Argument: list $ component. */}}
{{- define "triptych.selectorLabels" -}}
{{- $root := index . 0 }}{{ $it := index . 1 -}}
app.kubernetes.io/name: {{ default $root.Chart.Name $root.Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ $root.Release.Name | quote }}
app.kubernetes.io/component: {{ include "triptych.component" $it }}
{{- with $it.model }}
triptych.internal/model: {{ . | quote }}
{{- end }}
{{- end }}

{{/* Labels of an object. Argument: list $ component, or list $ (dict "role" ROLE) for what is no component. */}}
{{- define "triptych.labels" -}}
{{- $root := index . 0 -}}
{{ include "triptych.selectorLabels" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ $root.Chart.Name }}-{{ $root.Chart.Version }}
{{- end }}

{{/*
Image of a component: by its digest if one is given, else by its tag. Argument: list $ role image, where `image` has the keys that
differ from those of all services.
*/}}
{{- define "triptych.image" -}}
{{- $root := index . 0 }}{{ $own := index . 2 | default dict }}
{{- $tag := $own.tag | default $root.Values.image.tag | default $root.Chart.AppVersion }}
{{- with $own.registry | default $root.Values.image.registry }}{{ trimSuffix "/" . }}/{{ end -}}
{{ $own.name | default (printf "triptych-%s" (index . 1)) }}{{ with $own.digest }}@{{ . }}{{ else }}:{{ $tag }}{{ end }}
{{- end }}

{{/* Whether the gateway asks for API keys. */}}
{{- define "triptych.keyed" -}}
{{- if or .Values.gateway.apiKeysSecret.name (hasKey .Values.gateway.secretSettings "api_key") }}yes{{ end }}
{{- end }}

{{/* Names by which a gateway without keys is reached, as JSON. It refuses others, which a foreign site could have sent. */}}
{{- define "triptych.allowedHosts" -}}
{{- $names := .Values.gateway.settings.allowed_hosts | default list }}
{{- range include "triptych.components" . | fromJsonArray }}{{ range include "triptych.services" . | fromJsonArray }}
{{- if eq .role "gateway" }}{{ $names = append $names (printf "%s.%s" .name $.Release.Namespace) }}{{ end }}
{{- end }}{{ end }}
{{- if .Values.ingress.enabled }}{{ $names = concat $names .Values.ingress.hosts }}{{ end }}
{{- /* The route to pods of an inference gateway may be another chart's. */}}
{{- if or .Values.httpRoute.enabled .Values.inferenceGateway.enabled }}{{ $names = concat $names (.Values.httpRoute.hostnames | default (list "*")) }}{{ end }}
{{- toJson (uniq $names) }}
{{- end }}

{{- define "triptych.serviceAccountName" -}}
{{- $root := index . 0 }}
{{- if $root.Values.serviceAccount.create }}{{ include "triptych.fullname" $root }}-{{ index . 1 }}{{ else }}default{{ end }}
{{- end }}
