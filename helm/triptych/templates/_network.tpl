{{/*
Who calls whom: component -> the components of the same model that it calls. The gateway calls the frontends of all models.
Argument: a component of the model, or what is none.
*/}}
{{- define "triptych.callees" -}}
{{- $prefill := dig "entry" "prefill" "enabled" false . | ternary (list "prefill") list }}
{{- $callees := dict "gateway" (list "frontend") "encoder" list "fetch" list }}
{{- $callees = merge $callees (dict "frontend" (concat (list "encoder" "engine") $prefill) "engine" (concat (list "encoder") $prefill)) }}
{{- range $prefill }}{{ $_ := set $callees . (list "encoder") }}{{ end }}
{{- toJson $callees }}
{{- end }}

{{/* Whether pods of a role read the EndpointSlices of those that they call. Argument: list $ role. */}}
{{- define "triptych.watches" -}}
{{- $callees := index (include "triptych.callees" dict | fromJson) (index . 1) }}
{{- $values := (index . 0).Values }}
{{- if and (eq $values.discovery "kubernetes") $callees (not $values.inferenceGateway.enabled) }}yes{{ end }}
{{- end }}

{{/* Selects the pods of a role. Argument: list $ role model; an empty model means every model. */}}
{{- define "triptych.peer" -}}
podSelector:
  matchLabels: {{- include "triptych.selectorLabels" (list (index . 0) (dict "role" (index . 1) "model" (index . 2))) | nindent 4 }}
{{- end }}

{{/* Between the pods of an engine's groups: the ranks choose their ports themselves. Argument: list $ engine "from" or "to". */}}
{{- define "triptych.nodeRules" -}}
- {{ index . 2 }}:
    {{- range $role := list "engine" "engine-node" }}
    - {{ include "triptych.peer" (list (index $ 0) $role (index $ 1).model) | nindent 6 | trim }}
    {{- end }}
{{- end }}

{{/* Argument: list $ component. An empty list of peers lets everybody in. The kubelet's probes are always let in. */}}
{{- define "triptych.ingressRules" -}}
{{- $root := index . 0 }}{{ $it := index . 1 }}{{ $policy := $root.Values.networkPolicy }}
{{- $kv := $root.Values.inferenceGateway.kvEvents }}
{{- $metrics := list }}
{{- range include "triptych.services" $it | fromJsonArray }}
{{- $ports := include "triptych.ports" .role | fromJson }}{{ $isGateway := eq .role "gateway" }}
{{- $metrics = append $metrics (dict "port" $ports.metrics) }}
{{- /* Of a pod with all services, only the gateway is called from outside. */}}
{{- if or $isGateway (empty $it.companions) }}
- ports: [{port: {{ $ports.main }}}{{ if $isGateway }}, {port: {{ $ports.grpc }}}{{ end }}]
  {{- if not (and $isGateway (empty $policy.gatewayFrom)) }}
  from:
    {{- range $caller, $callees := include "triptych.callees" . | fromJson }}
    {{- if and (has (include "triptych.component" $it) $callees) (empty $it.companions) }}
    - {{ include "triptych.peer" (list $root $caller (ternary "" $it.model (eq $caller "gateway"))) | nindent 6 | trim }}
    {{- end }}
    {{- end }}
    {{- if $isGateway }}
    - {{ include "triptych.peer" (list $root "test" "") | nindent 6 | trim }}
    {{- toYaml $policy.gatewayFrom | nindent 4 }}
    {{- end }}
    {{- if eq .role "frontend" }}{{ with $policy.frontendFrom }}{{ toYaml . | nindent 4 }}{{ end }}{{ end }}
  {{- end }}
{{- end }}
{{- if include "triptych.publishes" (dict "root" $root "it" .) }}
- ports: [{port: {{ $kv.port }}}, {port: {{ $kv.replayPort }}}]
  from: {{- toYaml $policy.kvEventsFrom | nindent 4 }}
{{- end }}
{{- end }}
{{- if include "triptych.hasNodes" $it }}
{{ include "triptych.nodeRules" (list $root $it "from") }}
{{- end }}
{{- with $policy.metricsFrom }}
- ports: {{ toJson $metrics }}
  from: {{- toYaml . | nindent 4 }}
{{- end }}
{{- end }}

{{/* Argument: list $ component. */}}
{{- define "triptych.egressRules" -}}
{{- $root := index . 0 }}{{ $it := index . 1 }}{{ $policy := $root.Values.networkPolicy -}}
- ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
{{- range $callee := $it.companions | empty | ternary (index (include "triptych.callees" $it | fromJson) (include "triptych.component" $it)) list }}
- ports: [{port: {{ (include "triptych.ports" (eq $callee "prefill" | ternary "engine" $callee) | fromJson).main }}}]
  to:
    - {{ include "triptych.peer" (list $root $callee $it.model) | nindent 6 | trim }}
{{- end }}
{{- if include "triptych.hasNodes" $it }}
{{ include "triptych.nodeRules" (list $root $it "to") }}
{{- end }}
{{- if include "triptych.watches" (list $root $it.role) }}
# The API server.
- ports: [{port: 443}, {port: 6443}]
  {{- with $policy.apiServerTo }}
  to: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- $fetches := eq $it.role "fetch" }}
{{- if $it.entry }}{{ $fetches = has (include "triptych.fetchedBy" $it.entry) (list "init" "service") }}{{ end }}
{{- $services := include "triptych.services" $it | fromJsonArray }}
{{- $readsMedia := false }}{{ range $services }}{{ if eq .role "frontend" }}{{ $readsMedia = $policy.allowMediaUrls }}{{ end }}{{ end }}
{{- if or $fetches $readsMedia }}
# The internet, without private networks and the cloud's metadata service.
- ports: [{port: 443}, {port: 80}]
  to:
    - ipBlock: {cidr: 0.0.0.0/0, except: [10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, 100.64.0.0/10, 169.254.0.0/16]}
    - ipBlock: {cidr: "::/0", except: ["fc00::/7", "fe80::/10"]}
{{- end }}
{{- range $services }}
{{- with index $policy (printf "%sTo" .role) }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- with $policy.extraEgress }}
{{ toYaml . }}
{{- end }}
{{- end }}
