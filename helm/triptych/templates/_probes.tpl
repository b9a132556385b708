{{/* The kubelet's gRPC probes speak no TLS, so they ask the health port. A start may take as long as the model loads. */}}
{{- define "triptych.probes" }}
{{- $live := "" }}{{ $ready := "" }}
{{- if eq .it.role "gateway" }}
{{- $rest := printf "port: http, scheme: %s" (.it.config.httpsSecret | empty | ternary "HTTP" "HTTPS") }}
{{- $live = printf "httpGet: {path: /live, %s}" $rest }}
{{- $ready = printf "httpGet: {path: %s, %s}" (include "triptych.scalesToZero" .root | empty | ternary "/ready" "/live") $rest }}
{{- else }}
{{- $port := (include "triptych.ports" .it.role | fromJson).health }}
{{- $live = printf "grpc: {port: %v, service: liveness}" $port }}{{ $ready = printf "grpc: {port: %v, service: readiness}" $port }}
{{- end }}
startupProbe:
  {{ $live }}
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: {{ div .it.config.startupSeconds 5 }}
livenessProbe:
  {{ $live }}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  {{ $ready }}
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: 3
{{- end }}
