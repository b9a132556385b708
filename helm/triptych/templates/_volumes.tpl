{{- define "triptych.volumeMounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: home, mountPath: /var/cache/triptych}
{{- if .it.model }}
- {name: models, mountPath: /models{{ if ne .it.entry.storage.type "cache" }}, readOnly: true{{ end }}}
{{- end }}
{{- if .root.Values.tls.enabled }}
- {name: tls, mountPath: /etc/triptych/tls, readOnly: true}
{{- end }}
{{- if .it.config.httpsSecret }}
- {name: https, mountPath: /etc/triptych/https, readOnly: true}
{{- end }}
{{- if (.it.config.apiKeysSecret | default dict).name }}
- {name: api-keys, mountPath: /etc/triptych/api-keys, readOnly: true}
{{- end }}
{{- with .it.config.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Secrets are directories, not single files: the kubelet renews those, and the services read them again. */}}
{{- define "triptych.volumes" -}}
- {name: tmp, emptyDir: {}}
- {name: home, emptyDir: {}}
{{- if .it.model }}
- {{ include "triptych.modelVolume" (list .root .it.entry) | nindent 2 | trim }}
{{- end }}
{{- if .root.Values.tls.enabled }}
- {name: tls, secret: {secretName: {{ include "triptych.tlsSecret" (list .root .it.role) | quote }}, defaultMode: 0440}}
{{- end }}
{{- with .it.config.httpsSecret }}
- {name: https, secret: {secretName: {{ . | quote }}, defaultMode: 0440}}
{{- end }}
{{- with .it.config.apiKeysSecret }}{{ if .name }}
- {name: api-keys, secret: {secretName: {{ .name | quote }}, defaultMode: 0440}}
{{- end }}{{ end }}
{{- with .it.config.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
