{{/* The model setting of a service: a directory in the volume, or what `triptych fetch` put there. Argument: a model's entry. */}}
{{- define "triptych.modelSource" -}}
{{- $storage := .storage }}
{{- if eq $storage.type "image" }}{{ printf "/models/%s" $storage.image.path | trimSuffix "/" }}
{{- else if and (eq $storage.type "pvc") $storage.pvc.path }}/models/{{ $storage.pvc.path }}
{{- else }}{{ .model }}{{ end }}
{{- end }}

{{/* How a model's files come into the volume: `job`, `init` (in each pod), `service` (hub ids, by the service itself), or empty. */}}
{{- define "triptych.fetchedBy" -}}
{{- if eq .storage.type "cache" }}{{ contains "/" .model | ternary "service" "init" }}
{{- else if and (eq .storage.type "pvc") (not .storage.pvc.path) }}job{{ end }}
{{- end }}

{{- define "triptych.claimName" -}}
{{- $root := index . 0 }}{{ $entry := index . 1 }}
{{- $entry.storage.pvc.existingClaim | default (printf "%s-%s-models" (include "triptych.fullname" $root) $entry.name) }}
{{- end }}

{{/* The claim with the gateway's files. */}}
{{- define "triptych.filesClaim" -}}
{{- .Values.gateway.files.existingClaim | default (printf "%s-files" (include "triptych.fullname" .)) }}
{{- end }}

{{- define "triptych.modelVolume" -}}
{{- $root := index . 0 }}{{ $entry := index . 1 }}{{ $storage := $entry.storage -}}
name: models
{{- if eq $storage.type "image" }}
image: {reference: {{ $storage.image.reference | quote }}, pullPolicy: {{ $storage.image.pullPolicy }}}
{{- else if eq $storage.type "pvc" }}
persistentVolumeClaim: {claimName: {{ include "triptych.claimName" . | quote }}}
{{- else }}
emptyDir: {{ with $storage.cache.sizeLimit }}{sizeLimit: {{ . | quote }}}{{ else }}{}{{ end }}
{{- end }}
{{- end }}

{{/*
Affinity that keeps the pods of a claim on one node, where the claim can be mounted by one node only; else nothing. Without it, a pod
on another node would wait for the volume for ever. Argument: list $ entry.
*/}}
{{- define "triptych.oneNode" -}}
{{- $root := index . 0 }}{{ $entry := index . 1 }}
{{- if and (eq $entry.storage.type "pvc") (not (include "triptych.manyNodes" .)) -}}
podAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    - topologyKey: kubernetes.io/hostname
      labelSelector:
        matchLabels:
          {{- include "triptych.claimLabel" . | nindent 10 }}
{{- end }}
{{- end }}

{{/* Label of the pods that mount a claim, which may be several models'; nothing without a claim. Argument: list $ entry. */}}
{{- define "triptych.claimLabel" -}}
{{- if eq (index . 1).storage.type "pvc" -}}
triptych.internal/claim: {{ include "triptych.claimName" . | trunc 63 | trimAll "-." | quote }}
{{- end }}
{{- end }}

{{/* Access modes of a model's claim, as JSON. Those of a claim that is there cannot change. Argument: list $ entry. */}}
{{- define "triptych.accessModes" -}}
{{- $pvc := (index . 1).storage.pvc }}
{{- $live := lookup "v1" "PersistentVolumeClaim" (index . 0).Release.Namespace (include "triptych.claimName" .) }}
{{- dig "spec" "accessModes" $pvc.accessModes $live | toJson }}
{{- end }}

{{/* Whether several nodes may mount a model's claim. Argument: list $ entry. */}}
{{- define "triptych.manyNodes" -}}
{{- $modes := include "triptych.accessModes" . | fromJsonArray }}
{{- if or (has "ReadWriteMany" $modes) (has "ReadOnlyMany" $modes) }}yes{{ end }}
{{- end }}

{{/* Where the libraries find the files, and whether they may ask the hub. Argument: list $ entry. */}}
{{- define "triptych.modelEnv" -}}
{{- $hub := (index . 0).Values.hub }}{{ $by := include "triptych.fetchedBy" (index . 1) }}
- {name: TRIPTYCH_CACHE, value: /models/triptych}
- {name: HF_HOME, value: /models/huggingface}
{{- if ne $by "service" }}
- {name: HF_HUB_OFFLINE, value: "1"}
{{- else }}
{{- include "triptych.hubEnv" $hub }}
{{- end }}
{{- end }}

{{- define "triptych.hubEnv" }}
{{- with .endpoint }}
- {name: HF_ENDPOINT, value: {{ . | quote }}}
{{- end }}
{{- with .tokenSecret }}{{ if .name }}
- name: HF_TOKEN
  valueFrom: {secretKeyRef: {name: {{ .name | quote }}, key: {{ .key | quote }}}}
{{- end }}{{ end }}
{{- end }}
