{{/* What runs the pods of a component, and the ConfigMaps with the settings of its services. Argument: dict with root ($) and it. */}}
{{- define "triptych.workload" -}}
{{- $configs := list }}
{{- range include "triptych.services" .it | fromJsonArray }}
{{- $configs = append $configs (include "triptych.config" (dict "root" $.root "it" .)) }}
{{- end }}
{{- $config := join "\n---\n" $configs -}}
{{ $config }}
---
{{ include (include "triptych.hasNodes" .it | empty | ternary "triptych.deployment" "triptych.leaderWorkerSet") (merge (dict "config" $config) .) }}
{{- end }}

{{/* Argument of this and what follows: dict with root, it and config, the text of the ConfigMaps. */}}
{{- define "triptych.deployment" -}}
{{- $it := .it -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $it.name }}
  labels: {{- include "triptych.labels" (list .root $it) | nindent 4 }}
spec:
  replicas: {{ include "triptych.replicas" . }}
  {{- /* A claim of one node cannot be had by an old pod and a new one. */}}
  {{- $strategy := ternary (dict "type" "Recreate") (dict) (($it.config.files | default dict).enabled | default false) }}
  {{- with $it.config.strategy | default $strategy }}
  # With Recreate, Kubernetes takes no options of the other type, which a values file may have given.
  strategy: {{- eq (.type | default "") "Recreate" | ternary (omit . "rollingUpdate") . | toYaml | nindent 4 }}
  {{- end }}
  # Longer than a model takes to be fetched and to load: a pod may wait for both.
  {{- $fetched := and $it.model (include "triptych.fetchedBy" ($it.entry | default dict)) }}
  {{- $seconds := mul (ternary 2 1 (eq $fetched "job")) $it.config.startupSeconds }}
  {{- range $it.companions }}{{ $seconds = add $seconds .config.startupSeconds }}{{ end }}
  progressDeadlineSeconds: {{ add $seconds 300 }}
  selector:
    matchLabels: {{- include "triptych.selectorLabels" (list .root $it) | nindent 6 }}
  template: {{- include "triptych.podTemplate" . | nindent 4 }}
{{- end }}

{{- define "triptych.podTemplate" -}}
metadata:
  labels:
    {{- include "triptych.selectorLabels" (list .root .it) | nindent 4 }}
    {{- if .it.model }}{{ with include "triptych.claimLabel" (list .root .it.entry) }}{{ . | nindent 4 }}{{ end }}{{ end }}
    {{- with .it.config.podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  annotations:
    checksum/settings: {{ .config | sha256sum }}
    {{- with .it.config.annotations }}{{ toYaml . | nindent 4 }}{{ end }}
spec: {{- include "triptych.pod" . | nindent 2 }}
{{- end }}

{{- define "triptych.pod" -}}
{{- $values := .root.Values }}{{ $config := .it.config }}
{{- $grace := 0 }}
{{- range include "triptych.services" .it | fromJsonArray }}
{{- $grace = max $grace (ceil (.config.settings.shutdown_grace_s | default $values.settings.shutdown_grace_s | default 30)) }}
{{- end -}}
serviceAccountName: {{ include "triptych.serviceAccountName" (list .root .it.role) }}
automountServiceAccountToken: {{ include "triptych.watches" (list .root .it.role) | eq "yes" }}
# Variables of a Service named triptych-engine would be read as settings of the engine.
enableServiceLinks: false
# preStop, then the requests' time to end, then 15 s for the process.
terminationGracePeriodSeconds: {{ add $values.preStopSeconds $grace 15 }}
{{- include "triptych.podSecurity" .root }}
{{- range $field := list "priorityClassName" "runtimeClassName" "nodeSelector" "tolerations" }}
{{- with index $config $field }}
{{ $field }}: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- $affinity := dict }}
{{- if .it.model }}{{ $affinity = include "triptych.oneNode" (list .root .it.entry) | fromYaml }}{{ end }}
{{- with mergeOverwrite $affinity ($config.affinity | default dict) }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.topologySpread }}
topologySpreadConstraints:
  {{- range . }}
  - {{ toYaml . | nindent 4 | trim }}
    matchLabelKeys: [pod-template-hash]
    labelSelector:
      matchLabels: {{- include "triptych.selectorLabels" (list $.root $.it) | nindent 8 }}
  {{- end }}
{{- end }}
{{- $first := include "triptych.initContainer" . }}
{{- if or $first .it.companions }}
initContainers:
  {{- with $first }}
  - {{ . | nindent 4 | trim }}
  {{- end }}
  {{- /* They start in this order and end in the opposite one, so that whoever is called outlives its caller. */}}
  {{- range $role := .it.companions | empty | ternary list (list "encoder" "engine" "frontend") }}
  {{- range include "triptych.services" $.it | fromJsonArray }}
  {{- if eq .role $role }}
  - {{ include "triptych.container" (dict "root" $.root "it" .) | nindent 4 | trim }}
  {{- end }}
  {{- end }}
  {{- end }}
{{- end }}
containers:
  - {{ include "triptych.container" (dict "root" .root "it" (first (.it.companions | default (list .it)))) | nindent 4 | trim }}
volumes: {{- include "triptych.volumes" . | nindent 2 }}
{{- end }}

{{- define "triptych.podSecurity" }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  # A volume with a large model is not walked at each start.
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "triptych.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}
