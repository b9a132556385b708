{{- define "triptych.volumeMounts" -}}
- {name: tmp{{ .it.suffix }}, mountPath: /tmp}
- {name: home{{ .it.suffix }}, mountPath: /var/cache/triptych}
{{- if .it.model }}
- {name: models, mountPath: /models{{ if ne .it.entry.storage.type "cache" }}, readOnly: true{{ end }}}
{{- end }}
{{- if .root.Values.tls.enabled }}
- {name: tls{{ .it.suffix }}, mountPath: /etc/triptych/tls, readOnly: true}
{{- end }}
{{- if .it.config.httpsSecret }}
- {name: https, mountPath: /etc/triptych/https, readOnly: true}
{{- end }}
{{- if (.it.config.files | default dict).enabled }}
- {name: files, mountPath: /var/lib/triptych/files}
{{- end }}
{{- if (.it.config.apiKeysSecret | default dict).name }}
- {name: api-keys, mountPath: /etc/triptych/api-keys, readOnly: true}
{{- end }}
{{- if (.it.config.nodeKeySecret | default dict).name }}
- {name: node-key, mountPath: /etc/triptych/node-key, readOnly: true}
{{- end }}
{{- with .it.config.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Secrets are directories, not single files: the kubelet renews those, and the services read them again. */}}
{{- define "triptych.volumes" -}}
{{- if .it.model }}
- {{ include "triptych.modelVolume" (list .root .it.entry) | nindent 2 | trim }}
{{- end }}
{{- range include "triptych.services" .it | fromJsonArray }}
- {name: tmp{{ .suffix }}, emptyDir: {}}
- {name: home{{ .suffix }}, emptyDir: {}}
{{- if $.root.Values.tls.enabled }}
- {name: tls{{ .suffix }}, secret: {secretName: {{ include "triptych.tlsSecret" (list $.root .role) | quote }}, defaultMode: 0440}}
{{- end }}
{{- with .config.httpsSecret }}
- {name: https, secret: {secretName: {{ . | quote }}, defaultMode: 0440}}
{{- end }}
{{- with .config.files }}{{ if .enabled }}
- {name: files, persistentVolumeClaim: {claimName: {{ include "triptych.filesClaim" $.root | quote }}}}
{{- end }}{{ end }}
{{- with .config.apiKeysSecret }}{{ if .name }}
- {name: api-keys, secret: {secretName: {{ .name | quote }}, defaultMode: 0440}}
{{- end }}{{ end }}
{{- with .config.nodeKeySecret }}{{ if .name }}
- {name: node-key, secret: {secretName: {{ .name | quote }}, defaultMode: 0440}}
{{- end }}{{ end }}
{{- with .config.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- end }}
