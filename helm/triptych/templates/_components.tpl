{{/*
All components of the release, as a JSON list: the gateway, then frontend, encoder, engine and prefill of each model. With an inference
gateway, one component for each model: its engine, in whose pods the others run too. A component has:
  role     gateway, frontend, encoder or engine
  component what it is called in labels, where that is not the role: `prefill` for the engines of prompts
  model    name of its entry in `models`; empty for the gateway
  name     name of its objects
  config   its values: the role's defaults, overridden by the model's entry
  entry    the model's entry, with its `storage`, `endpointPicker` and `prefill` merged
  companions the services that run in its pods too: gateway, frontend and encoder
  suffix   of a companion: the end of the names of volumes that are its own
*/}}
{{- define "triptych.components" -}}
{{- include "triptych.validateModels" . }}
{{- $full := include "triptych.fullname" . }}
{{- $pooled := .Values.inferenceGateway.enabled }}
{{- $gateway := dict "role" "gateway" "model" "" "name" (printf "%s-gateway" $full) "config" .Values.gateway "entry" dict }}
{{- $found := $pooled | ternary list (list $gateway) }}
{{- range $model := .Values.models }}
{{- $storage := mergeOverwrite (deepCopy $.Values.storage) ($model.storage | default dict) }}
{{- $picker := mergeOverwrite (deepCopy $.Values.inferenceGateway.endpointPicker) ($model.endpointPicker | default dict) }}
{{- $served := $model.servedModelName | default $model.name }}
{{- $prefill := mergeOverwrite (deepCopy $.Values.prefill) ($model.prefill | default dict) }}
{{- $entry := merge (dict "storage" $storage "endpointPicker" $picker "servedModelName" $served "prefill" $prefill) $model }}
{{- $own := list }}
{{- range $role := list "frontend" "encoder" "engine" }}
{{- $config := mergeOverwrite (deepCopy (index $.Values $role)) (index $model $role | default dict) }}
{{- if or (ne $role "encoder") $config.enabled }}
{{- $name := printf "%s-%s-%s" $full $model.name $role }}
{{- $own = append $own (dict "role" $role "model" $model.name "name" $name "config" $config "entry" $entry) }}
{{- end }}
{{- end }}
{{- if and $prefill.enabled (not $pooled) }}
{{- $config := mergeOverwrite (deepCopy (last $own).config) $prefill }}
{{- $name := printf "%s-%s-prefill" $full $model.name }}
{{- $own = append $own (dict "role" "engine" "component" "prefill" "model" $model.name "name" $name "config" $config "entry" $entry) }}
{{- end }}
{{- if $pooled }}
{{- $companions := prepend (initial $own) (merge (dict "name" (printf "%s-%s-gateway" $full $model.name)) $gateway) }}
{{- range $companions }}{{ $_ := set . "suffix" (printf "-%s" .role) }}{{ end }}
{{- $own = list (set (last $own) "companions" $companions) }}
{{- end }}
{{- $found = concat $found $own }}
{{- end }}
{{- toJson $found }}
{{- end }}

{{/* What a component is called in labels. Argument: the component. */}}
{{- define "triptych.component" -}}
{{ .component | default .role }}
{{- end }}

{{/* A component and its companions, as a JSON list. Argument: the component. */}}
{{- define "triptych.services" -}}
{{- prepend (.companions | default list) . | toJson }}
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
Targets of the components of a role, or of prefill, separated by commas. Argument: list $ role model; an empty model means every model.
A headless Service has one address per pod; the services look the name up again and again, or watch its EndpointSlices, and choose
among the pods. Services of the same pod are on its loopback address.
*/}}
{{- define "triptych.targets" -}}
{{- $root := index . 0 }}{{ $role := index . 1 }}{{ $model := index . 2 }}{{ $targets := list }}
{{- range $component := include "triptych.components" $root | fromJsonArray }}
{{- range include "triptych.services" $component | fromJsonArray }}
{{- if and (has $role (list .role .component)) (or (not $model) (eq .model $model)) }}
{{- $port := (include "triptych.ports" .role | fromJson).main }}
{{- $format := eq $root.Values.discovery "kubernetes" | ternary "kubernetes:%s.%s:%d" "dns:%s.%s.svc:%d" }}
{{- $there := printf $format .name $root.Release.Namespace (int $port) }}
{{- $targets = append $targets ($component.companions | empty | ternary $there (printf "127.0.0.1:%d" (int $port))) }}
{{- end }}
{{- end }}
{{- end }}
{{- join "," (uniq $targets) }}
{{- end }}
