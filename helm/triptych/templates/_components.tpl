{{/*
All components of the release, as a JSON list: the gateway, then frontend, encoder and engine of each model. A component has:
  role     gateway, frontend, encoder or engine
  model    name of its entry in `models`; empty for the gateway
  name     name of its objects
  config   its values: the role's defaults, overridden by the model's entry
  entry    the model's entry, with its `storage` merged
*/}}
{{- define "triptych.components" -}}
{{- include "triptych.validateModels" . }}
{{- $full := include "triptych.fullname" . }}
{{- $found := list (dict "role" "gateway" "model" "" "name" (printf "%s-gateway" $full) "config" .Values.gateway "entry" dict) }}
{{- range $model := .Values.models }}
{{- $storage := mergeOverwrite (deepCopy $.Values.storage) ($model.storage | default dict) }}
{{- $entry := merge (dict "storage" $storage "servedModelName" ($model.servedModelName | default $model.name)) $model }}
{{- range $role := list "frontend" "encoder" "engine" }}
{{- $config := mergeOverwrite (deepCopy (index $.Values $role)) (index $model $role | default dict) }}
{{- if or (ne $role "encoder") $config.enabled }}
{{- $name := printf "%s-%s-%s" $full $model.name $role }}
{{- $found = append $found (dict "role" $role "model" $model.name "name" $name "config" $config "entry" $entry) }}
{{- end }}
{{- end }}
{{- end }}
{{- toJson $found }}
{{- end }}

{{/* Ports of a role, as JSON. `main` is the port of the work; the gateway has its metrics there too, and serves gRPC at a second one. */}}
{{- define "triptych.ports" -}}
{{- $ports := dict
  "gateway" (dict "main" 8000 "grpc" 50051 "metrics" 8000)
  "frontend" (dict "main" 50054 "health" 50254 "metrics" 50354)
  "encoder" (dict "main" 50052 "health" 50252 "metrics" 50352)
  "engine" (dict "main" 50053 "health" 50253 "metrics" 50353) }}
{{- index $ports . | toJson }}
{{- end }}

{{/*
Targets of the components of a role, separated by commas. Argument: list $ role model; an empty model means every model.
A headless Service has one address per pod; the services look the name up again and again, or watch its EndpointSlices, and choose
among the pods.
*/}}
{{- define "triptych.targets" -}}
{{- $root := index . 0 }}{{ $role := index . 1 }}{{ $model := index . 2 }}{{ $targets := list }}
{{- $port := (include "triptych.ports" $role | fromJson).main }}
{{- range include "triptych.components" $root | fromJsonArray }}
{{- if and (eq .role $role) (or (not $model) (eq .model $model)) }}
{{- $format := eq $root.Values.discovery "kubernetes" | ternary "kubernetes:%s.%s:%d" "dns:%s.%s.svc:%d" }}
{{- $targets = append $targets (printf $format .name $root.Release.Namespace (int $port)) }}
{{- end }}
{{- end }}
{{- join "," $targets }}
{{- end }}
