{{- define "triptych.notes" -}}
{{- $components := include "triptych.components" . | fromJsonArray }}
{{- $gateway := first ((first $components).companions | default (list (first $components))) }}
{{- $scheme := .Values.gateway.httpsSecret | empty | ternary "http" "https" -}}
{{- $served := list }}{{ range .Values.models }}{{ $served = append $served (.servedModelName | default .name) }}{{ end -}}
Triptych serves {{ join ", " $served }}.

Watch it start:
  kubectl --namespace {{ .Release.Namespace }} get pods --selector app.kubernetes.io/instance={{ .Release.Name }} --watch

Ask it, when the gateway is ready:
{{- if .Values.ingress.enabled }}
  {{ .Values.ingress.tlsSecret | empty | ternary "http" "https" }}://{{ first .Values.ingress.hosts }}/v1
{{- else }}
  kubectl --namespace {{ .Release.Namespace }} port-forward service/{{ $gateway.name }} 8000:{{ .Values.gateway.service.port }}
  {{ $scheme }}://127.0.0.1:8000/v1
{{- end }}
  helm test --namespace {{ .Release.Namespace }} {{ .Release.Name }}
{{- $settings := .Values.gateway.settings }}{{ $secrets := .Values.gateway.secretSettings }}
{{- $keyed := include "triptych.keyed" . }}
{{- if not $keyed }}

WARNING: the gateway answers everybody. Set gateway.apiKeysSecret, or gateway.secretSettings.api_key.
{{- end }}
{{- if and $keyed (not .Values.tests.apiKeySecret.name) }}

WARNING: the gateway has API keys, and `helm test` has none: set tests.apiKeySecret.
{{- end }}
{{- if and .Values.keda.enabled (not .Values.monitoring.serviceMonitor.enabled) }}

WARNING: KEDA scales by metrics with the labels namespace and service, and there is no ServiceMonitor that sets them. Set monitoring.serviceMonitor.enabled, unless your Prometheus finds the pods otherwise.
{{- end }}
{{- with .Values.monitoring.serviceMonitor }}
{{- if and .enabled $keyed (not .apiKeySecret.name) }}

WARNING: the gateway has API keys, and Prometheus has none: set monitoring.serviceMonitor.apiKeySecret to an operator's.
{{- end }}
{{- end }}
{{- if and .Values.inferenceGateway.enabled .Values.inferenceGateway.kvEvents.enabled (not .Values.networkPolicy.enabled) }}

WARNING: every pod of the cluster that reaches the engines can read the tokens of all prompts (inferenceGateway.kvEvents), because networkPolicy.enabled is false.
{{- end }}
{{- if not .Values.tls.enabled }}

WARNING: tls.enabled is false, so that the services speak plaintext and let everybody in who reaches their ports.
{{- end }}
{{- $num := 0 }}
{{- range .Values.inferenceGateway.enabled | ternary $components (list (first $components)) }}
{{- $num = add $num (max (int .config.replicas) ($.Values.keda.enabled | ternary (int .config.scaling.maxReplicas) 0)) }}
{{- end }}
{{- if gt $num 1 }}
{{- range $setting := list "response_store" "rate_limit_store" }}
{{- if not (or (hasKey $settings $setting) (hasKey $secrets $setting)) }}

WARNING: there are several gateways, and each keeps its own {{ $setting }} in memory. Set {{ $setting }} to a Redis that all share.
{{- end }}
{{- end }}
{{- end }}
{{- if not .Values.image.registry }}

The images' names have no registry (image.registry), so that nodes which do not have them ask Docker Hub.
{{- end }}
{{- $unnamed := false }}
{{- range include "triptych.components" . | fromJsonArray }}
{{- if and (eq (include "triptych.component" .) "engine") (eq .entry.storage.type "pvc") }}
{{- with .entry.storage.pvc }}{{ if not (or .existingClaim .storageClassName) }}{{ $unnamed = true }}{{ end }}{{ end }}
{{- $replicas := max (int .config.replicas) ($.Values.keda.enabled | ternary (int .config.scaling.maxReplicas) 0) }}
{{- if .entry.prefill.enabled }}{{ $replicas = add $replicas 1 }}{{ end }}
{{- if and (gt $replicas 1) (not (include "triptych.manyNodes" (list $ .entry))) }}

WARNING: the claim of {{ .model }} is {{ include "triptych.accessModes" (list $ .entry) | fromJsonArray | join ", " }}: all pods of the model run on one node. Set storage.pvc.accessModes to [ReadWriteMany] where the class can.
{{- end }}
{{- end }}
{{- end }}
{{- if $unnamed }}

The models' claims are of the cluster's default StorageClass. If it has none, they stay pending: set storage.pvc.storageClassName, or storage.type to cache.
{{- end }}
{{- end }}
