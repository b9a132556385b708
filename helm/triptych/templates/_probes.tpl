{{/*
The kubelet's gRPC probes speak no TLS, so they ask the health port. An engine or encoder has started when its model is loaded: until
then nothing asks whether it is alive, because loading may stall its event loop. A frontend that has loaded waits for an engine, and a
gateway for a frontend, so that these have started as soon as they answer.
*/}}
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
  {{ has .it.role (list "engine" "encoder") | ternary $ready $live }}
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
