{{/* Secret with a role's certificate. Argument: list $ role. */}}
{{- define "triptych.tlsSecret" -}}
{{- $root := index . 0 }}{{ $role := index . 1 }}
{{- $own := printf "%s-%s-%s" (include "triptych.fullname" $root) $role ($root.Values.tls.certManager | ternary "tls" "certificate") }}
{{- index $root.Values.tls.existingSecrets $role | default $own }}
{{- end }}

{{/* The roles that get a certificate: the services, and people: operators, and gRPC clients of the frontends. */}}
{{- define "triptych.roles" -}}
{{- list "gateway" "frontend" "encoder" "engine" "operator" "client" | toJson }}
{{- end }}

{{/*
The data of the Secrets that Helm makes, as JSON: role -> files. Those that are in the cluster stay as they are. If one is missing, all
are made anew, because the key of the CA that signed them was not kept: nobody can make a further certificate of it.
*/}}
{{- define "triptych.generatedCertificates" -}}
{{- $found := dict }}{{ $roles := include "triptych.roles" . | fromJsonArray }}
{{- range $role := $roles }}
{{- with lookup "v1" "Secret" $.Release.Namespace (include "triptych.tlsSecret" (list $ $role)) }}{{ $_ := set $found $role .data }}{{ end }}
{{- end }}
{{- if lt (len $found) (len $roles) }}
{{- $ca := genCAWithKey (printf "%s-ca" (include "triptych.fullname" .)) 3650 (genPrivateKey "ecdsa") }}
{{- range $role := $roles }}
{{- $name := printf "%s.triptych.internal" $role }}
{{- $made := genSignedCertWithKey $name (list) (list $name) 3650 $ca (genPrivateKey "ecdsa") }}
{{- $_ := set $found $role (dict "tls.crt" (b64enc $made.Cert) "tls.key" (b64enc $made.Key) "ca.crt" (b64enc $ca.Cert)) }}
{{- end }}
{{- end }}
{{- toJson $found }}
{{- end }}
