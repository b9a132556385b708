{{/* Whether an engine's model is divided among several pods. Argument: a component. */}}
{{- define "triptych.hasNodes" -}}
{{- if and (eq .role "engine") (gt (int .config.nodes) 1) }}yes{{ end }}
{{- end }}

{{/* The pods beside the one that serves: they have the engine's settings and files, and no ports. Argument: an engine. */}}
{{- define "triptych.otherNodes" -}}
{{- merge (dict "component" "engine-node" "computesOnly" true) . | toJson }}
{{- end }}

{{/*
Groups of pods that compute a model together. The first pod of each serves; only it has the labels that Services select. A pod that is
replaced joins again by itself, and the first one waits for it, so the others stay.
*/}}
{{- define "triptych.leaderWorkerSet" -}}
{{- $it := .it -}}
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata:
  name: {{ include "triptych.groupName" $it }}
  labels: {{- include "triptych.labels" (list .root $it) | nindent 4 }}
spec:
  replicas: {{ include "triptych.replicas" . }}
  startupPolicy: LeaderCreated
  {{- with ($it.config.strategy | default dict).rollingUpdate }}
  rolloutStrategy:
    type: RollingUpdate
    rollingUpdateConfiguration: {{- toYaml . | nindent 6 }}
  {{- end }}
  leaderWorkerTemplate:
    size: {{ int $it.config.nodes }}
    restartPolicy: None
    leaderTemplate: {{- include "triptych.podTemplate" . | nindent 6 }}
    workerTemplate: {{- include "triptych.podTemplate" (merge (dict "it" (include "triptych.otherNodes" $it | fromJson)) .) | nindent 6 }}
{{- end }}

{{/* Not the component's own: LeaderWorkerSet makes a Service of this name, which selects all pods of a group. */}}
{{- define "triptych.groupName" -}}
{{ .name }}-nodes
{{- end }}

{{/* LeaderWorkerSet puts its variables in front of these. */}}
{{- define "triptych.nodeEnv" -}}
- {name: TRIPTYCH_ENGINE_NNODES, value: $(LWS_GROUP_SIZE)}
- {name: TRIPTYCH_ENGINE_NODE_RANK, value: $(LWS_WORKER_INDEX)}
- {name: TRIPTYCH_ENGINE_MASTER_ADDR, value: $(LWS_LEADER_ADDRESS)}
{{- end }}
