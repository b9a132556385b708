{{- define "triptych.notes" -}}
{{- $full := include "triptych.fullname" . }}{{ $scheme := .Values.gateway.httpsSecret | empty | ternary "http" "https" -}}
{{- $served := list }}{{ range .Values.models }}{{ $served = append $served (.servedModelName | default .name) }}{{ end -}}
Triptych serves {{ join ", " $served }}.

Watch it start:
  kubectl --namespace {{ .Release.Namespace }} get pods --selector app.kubernetes.io/instance={{ .Release.Name }} --watch

Ask it, when the gateway is ready:
{{- if .Values.ingress.enabled }}
  {{ .Values.ingress.tlsSecret | empty | ternary "http" "https" }}://{{ first .Values.ingress.hosts }}/v1
{{- else }}
  kubectl --namespace {{ .Release.Namespace }} port-forward service/{{ $full }}-gateway 8000:{{ .Values.gateway.service.port }}
  {{ $scheme }}://127.0.0.1:8000/v1
{{- end }}
  helm test --namespace {{ .Release.Namespace }} {{ .Release.Name }}
{{- $settings := .Values.gateway.settings }}{{ $secrets := .Values.gateway.secretSettings }}
{{- $keyed := or .Values.gateway.apiKeysSecret.name (hasKey $secrets "api_key") }}
{{- if not $keyed }}

WARNING: the gateway answers everybody. Set gateway.apiKeysSecret, or gateway.secretSettings.api_key.
{{- end }}
{{- with .Values.monitoring.serviceMonitor }}
{{- if and .enabled $keyed (not .apiKeySecret.name) }}

WARNING: the gateway has API keys, and Prometheus has none: set monitoring.serviceMonitor.apiKeySecret to an operator's.
{{- end }}
{{- end }}
{{- if not .Values.tls.enabled }}

WARNING: tls.enabled is false, so that the services speak plaintext and let everybody in who reaches their ports.
{{- end }}
{{- if or (gt (int .Values.gateway.replicas) 1) .Values.gateway.autoscaling.enabled }}
{{- range $setting := list "response_store" "rate_limit_store" }}
{{- if not (or (hasKey $settings $setting) (hasKey $secrets $setting)) }}

WARNING: there are several gateways, and each keeps its own {{ $setting }} in memory. Set {{ $setting }} to a Redis that all share.
{{- end }}
{{- end }}
{{- end }}
{{- range include "triptych.components" . | fromJsonArray }}
{{- if and (eq .role "engine") (eq .entry.storage.type "pvc") }}
{{- $modes := .entry.storage.pvc.accessModes }}
{{- if not (or (has "ReadWriteMany" $modes) (has "ReadOnlyMany" $modes)) }}

WARNING: the claim of {{ .model }} is {{ join ", " $modes }}: the model's pods must all run on one node.
{{- end }}
{{- end }}
{{- end }}
{{- end }}
