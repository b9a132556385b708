{{/*
Replicas of a component. Where KEDA scales it, an upgrade leaves the number as it is: a number from the values would undo KEDA's, and
no number at all would become 1 when KEDA is turned on. Argument: as for triptych.deployment.
*/}}
{{- define "triptych.replicas" -}}
{{- $live := dict }}
{{- if .root.Values.keda.enabled }}
{{- $target := include "triptych.scaleTarget" .it | fromYaml }}
{{- $live = lookup $target.apiVersion $target.kind .root.Release.Namespace $target.name }}
{{- end }}
{{- $live | empty | ternary .it.config.replicas (dig "spec" "replicas" .it.config.replicas $live) | int }}
{{- end }}

{{/* What has the replicas of a component. Argument: the component. */}}
{{- define "triptych.scaleTarget" -}}
{{- if include "triptych.hasNodes" . -}}
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
name: {{ include "triptych.groupName" . }}
{{- else -}}
apiVersion: apps/v1
kind: Deployment
name: {{ .name }}
{{- end }}
{{- end }}

{{/* Whether a model of this release may have no engine, so that the gateway must take requests while no frontend is ready. */}}
{{- define "triptych.scalesToZero" -}}
{{- $found := "" }}
{{- range include "triptych.components" . | fromJsonArray }}
{{- if and $.Values.keda.enabled (eq (include "triptych.component" .) "engine") (eq (int .config.scaling.minReplicas) 0) }}{{ $found = "yes" }}{{ end }}
{{- end }}
{{- $found }}
{{- end }}

{{/* Selects a series by labels that the Prometheus operator, and most other configurations, set. Argument: list $ name. */}}
{{- define "triptych.series" -}}
{namespace="{{ (index . 0).Release.Namespace }}",service="{{ index . 1 }}"}
{{- end }}

{{/*
1 if requests wait for the model at a gateway, or its frontends have calls, or got one in the last two minutes, answered or refused;
else 0. The second part counts a series that began with its first call, which increase() does not see. Argument: list $ component.
*/}}
{{- define "triptych.callsQuery" -}}
{{- $it := index . 1 }}{{ $name := printf "%s-%s-frontend" (include "triptych.fullname" (index . 0)) $it.model }}
{{- $series := include "triptych.series" (list (index . 0) $name) }}
{{- $calls := printf "triptych_frontend_calls_total%s" $series }}
{{- $parts := list (printf "increase(%s[2m])" $calls) (printf "%s unless %s offset 2m" $calls $calls) }}
{{- $gateway := printf "%s-gateway" (include "triptych.fullname" (index . 0)) }}
{{- $waiting := printf "triptych_gateway_model_requests_waiting{namespace=%q,service=%q,model_name=%q}" (index . 0).Release.Namespace $gateway $it.entry.servedModelName }}
{{- $parts = append $parts (printf "triptych_frontend_live_requests%s" $series) }}
{{- $sums := list }}
{{- range append $parts $waiting }}
{{- $sums = append $sums (printf "(sum(%s) or vector(0))" .) }}
{{- end -}}
clamp_max({{ join " + " $sums }}, 1)
{{- end }}

{{/* A trigger of KEDA. Argument: dict with root, query (PromQL), threshold, type (AverageValue or Value), activation. */}}
{{- define "triptych.trigger" -}}
type: prometheus
metricType: {{ .type }}
metadata:
  serverAddress: {{ .root.Values.keda.prometheusAddress | quote }}
  query: {{ .query | quote }}
  threshold: {{ .threshold | quote }}
  activationThreshold: {{ .activation | quote }}
{{- end }}
