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
# The shell is the container's first process, which a signal reaches only through a trap.
command:
  - sh
  - -ec
  - |
    trap 'kill -TERM $!; exit 143' TERM
    triptych fetch "$1" & wait $!
    mkdir -p "${2%/*}"; touch "$2"
  - fetch
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
command:
  - sh
  - -c
  - |
    trap 'exit 143' TERM
    waited=0
    until [ -e "$1" ]; do
      if [ $waited -ge "$2" ]; then
        echo "$1 is missing after $2 s: look at the log of the Job that fetches the model (kubectl get jobs)" >&2
        exit 1
      fi
      sleep 2 & wait $!
      waited=$((waited + 2))
    done
  - wait
  - {{ include "triptych.fetchedFile" (list .root .it.entry) }}
  - {{ .it.config.startupSeconds | quote }}
terminationMessagePolicy: FallbackToLogsOnError
resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {memory: 64Mi}}
securityContext: {{- include "triptych.containerSecurity" . | nindent 2 }}
volumeMounts:
  - {name: models, mountPath: /models, readOnly: true}
{{- end }}
{{- end }}

{{/* What the Job does. Its name has the hash of this text, because a Job cannot be changed. Argument: list $ entry. */}}
{{- define "triptych.fetchJobSpec" -}}
{{- $root := index . 0 }}{{ $it := dict "role" "fetch" "model" (index . 1).name -}}
backoffLimit: 6
template:
  metadata:
    labels:
      {{- include "triptych.selectorLabels" (list $root $it) | nindent 6 }}
      {{- include "triptych.claimLabel" . | nindent 6 }}
  spec:
    restartPolicy: OnFailure
    serviceAccountName: {{ include "triptych.serviceAccountName" (list $root "fetch") }}
    automountServiceAccountToken: false
    enableServiceLinks: false
    {{- include "triptych.podSecurity" $root | indent 4 }}
    {{- with include "triptych.oneNode" . }}
    affinity: {{- . | nindent 6 }}
    {{- end }}
    containers:
      - {{ include "triptych.fetchContainer" . | nindent 8 | trim }}
    volumes:
      - {name: tmp, emptyDir: {}}
      - {name: home, emptyDir: {}}
      - {{ include "triptych.modelVolume" . | nindent 8 | trim }}
{{- end }}
