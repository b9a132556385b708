{{/* The file that says that an image has fetched a model; pods wait for it. Argument: list $ entry. */}}
{{- define "triptych.fetchedFile" -}}
{{- $tag := include "triptych.image" (list (index . 0) "fetch" (index . 0).Values.fetch.image) | splitList ":" | last -}}
/models/fetched/{{ (index . 1).model | replace "/" "--" }}@{{ $tag }}
{{- end }}

{{/* The container that fetches a model into the volume. Argument: list $ entry. */}}
{{- define "triptych.fetchContainer" -}}
{{- $root := index . 0 }}{{ $entry := index . 1 }}{{ $fetch := $root.Values.fetch -}}
name: fetch
image: {{ include "triptych.image" (list $root "fetch" $fetch.image) | quote }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
command: [sh, -ec, 'triptych fetch "$1"; mkdir -p "${2%/*}"; touch "$2"', fetch]
args: [{{ $entry.model | quote }}, {{ include "triptych.fetchedFile" . }}]
env:
  - {name: TRIPTYCH_CACHE, value: /models/triptych}
  - {name: HF_HOME, value: /models/huggingface}
  {{- include "triptych.hubEnv" $root.Values.hub | nindent 2 }}
  {{- with $fetch.env }}{{ toYaml . | nindent 2 }}{{ end }}
resources: {{- toYaml $fetch.resources | nindent 2 }}
securityContext: {{- include "triptych.containerSecurity" . | nindent 2 }}
volumeMounts:
  - {name: models, mountPath: /models}
  - {name: home, mountPath: /var/cache/triptych}
  - {name: tmp, mountPath: /tmp}
{{- end }}

{{/* What a pod does before its service starts: fetch the model, or wait for the Job that does. */}}
{{- define "triptych.initContainer" -}}
{{- $by := "" }}{{ if .it.model }}{{ $by = include "triptych.fetchedBy" .it.entry }}{{ end }}
{{- if eq $by "init" }}
{{- include "triptych.fetchContainer" (list .root .it.entry) }}
{{- else if eq $by "job" -}}
name: wait-for-model
image: {{ include "triptych.image" (list .root .it.role .it.config.image) | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
command: [sh, -c, 'until [ -e "$1" ]; do sleep 2; done', wait, {{ include "triptych.fetchedFile" (list .root .it.entry) }}]
resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {memory: 64Mi}}
securityContext: {{- include "triptych.containerSecurity" . | nindent 2 }}
volumeMounts:
  - {name: models, mountPath: /models, readOnly: true}
{{- end }}
{{- end }}
