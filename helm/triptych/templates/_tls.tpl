{{/* Secret with a role's certificate. Argument: list $ role. */}}
{{- define "triptych.tlsSecret" -}}
{{- $root := index . 0 }}{{ $role := index . 1 }}
{{- index $root.Values.tls.existingSecrets $role | default (printf "%s-%s-tls" (include "triptych.fullname" $root) $role) }}
{{- end }}
