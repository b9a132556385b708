{{/* What a schema cannot say. Each message names the path, what was given and what is allowed. */}}
{{- define "triptych.validateModels" }}
{{- $names := list }}{{ $served := list }}
{{- range $index, $model := .Values.models }}
{{- $path := printf "models[%d]" $index }}{{ $name := $model.servedModelName | default $model.name }}
{{- if has $model.name $names }}
{{- fail (printf "\n%s.name: another model has the name %q; each needs its own" $path $model.name) }}{{ end }}
{{- if has $name $served }}
{{- fail (printf "\n%s.servedModelName: another model is served as %q; clients choose a model by this name" $path $name) }}{{ end }}
{{- $names = append $names $model.name }}{{ $served = append $served $name }}
{{- $storage := mergeOverwrite (deepCopy $.Values.storage) ($model.storage | default dict) }}
{{- include "triptych.validateStorage" (dict "path" $path "model" $model "storage" $storage) }}
{{- end }}
{{- end }}

{{- define "triptych.validate" }}
{{- range include "triptych.components" . | fromJsonArray }}
{{- range include "triptych.services" . | fromJsonArray }}{{ include "triptych.validateComponent" . }}{{ end }}
{{- if and (include "triptych.hasNodes" .) (include "triptych.oneNode" (list $ .entry)) }}
{{- fail (printf "\nengine of model %q: nodes is %v, and the model's claim keeps all pods on one node; give storage.pvc.accessModes ReadWriteMany" .model .config.nodes) }}{{ end }}
{{- end }}
{{- if .Values.gateway.files.enabled }}
{{- $most := .Values.keda.enabled | ternary .Values.gateway.scaling.maxReplicas .Values.gateway.replicas }}
{{- if gt (int $most) 1 }}
{{- fail (printf "\ngateway.files.enabled: is true, and there may be %v gateways; files and batches are in a claim that one gateway has: keep replicas and scaling.maxReplicas 1" $most) }}{{ end }}
{{- if .Values.inferenceGateway.enabled }}
{{- fail "\ngateway.files.enabled: is true, and so is inferenceGateway.enabled; each pod has a gateway then, and files and batches are in a claim that one gateway has" }}{{ end }}
{{- end }}
{{- with .Values.gateway.service }}{{ if eq (int .port) (int .grpcPort) }}
{{- fail (printf "\ngateway.service: port and grpcPort are both %v; give each a port of its own" .port) }}{{ end }}{{ end }}
{{- with .Values.tls.existingSecrets }}{{ range $role := list "gateway" "frontend" "encoder" "engine" }}
{{- if not (index $.Values.tls.existingSecrets $role) }}
{{- fail (printf "\ntls.existingSecrets.%s: is missing; there must be one for each of gateway, frontend, encoder and engine" $role) }}{{ end }}
{{- end }}{{ end }}
{{- if and .Values.tls.issuerRef (not .Values.tls.certManager) }}
{{- fail "\ntls.issuerRef: is given, and tls.certManager is false; set it to true, because only cert-manager asks an issuer" }}{{ end }}
{{- if and .Values.tls.enabled .Values.tls.certManager (not .Values.tls.existingSecrets) }}
{{- if le (trimSuffix "h" .Values.tls.duration | int) (trimSuffix "h" .Values.tls.renewBefore | int) }}
{{- fail (printf "\ntls.duration: is %s, and must be longer than tls.renewBefore, %s" .Values.tls.duration .Values.tls.renewBefore) }}{{ end }}
{{- end }}
{{- if and .Values.httpRoute.enabled (not .Values.httpRoute.parentRefs) }}
{{- fail "\nhttpRoute.parentRefs: is empty; name the Gateway that the route belongs to" }}{{ end }}
{{- include "triptych.validateInferenceGateway" . }}
{{- if and .Values.ingress.enabled (not .Values.ingress.hosts) }}
{{- fail "\ningress.hosts: is empty; name at least one host" }}{{ end }}
{{- end }}

{{- define "triptych.validateInferenceGateway" }}
{{- with .Values.inferenceGateway }}{{ if .enabled }}
{{- if $.Values.ingress.enabled }}
{{- fail "\ningress.enabled: is true, and so is inferenceGateway.enabled; an Ingress knows no endpoint picker: use httpRoute" }}{{ end }}
{{- if $.Values.gateway.httpsSecret }}
{{- fail "\ngateway.httpsSecret: is given, and inferenceGateway.enabled is true; pickers and proxies speak plain HTTP to pods: TLS ends at the Gateway" }}{{ end }}
{{- range $port := list .kvEvents.port .kvEvents.replayPort }}
{{- if or (eq (int $port) 8000) (and (ge (int $port) 50051) (le (int $port) 50354)) }}
{{- fail (printf "\ninferenceGateway.kvEvents: port %v is one of the services' (8000, 50051 to 50354)" $port) }}{{ end }}
{{- end }}
{{- if eq (int .kvEvents.port) (int .kvEvents.replayPort) }}
{{- fail "\ninferenceGateway.kvEvents: port and replayPort are the same" }}{{ end }}
{{- if and .kvEvents.enabled $.Values.networkPolicy.enabled (not $.Values.networkPolicy.kvEventsFrom) }}
{{- fail "\nnetworkPolicy.kvEventsFrom: is empty; name the pods of the endpoint picker, which alone may read the tokens of all prompts" }}{{ end }}
{{- range include "triptych.components" $ | fromJsonArray }}
{{- $volumes := list }}
{{- range include "triptych.services" . | fromJsonArray }}{{ range .config.extraVolumes }}
{{- if has .name $volumes }}
{{- fail (printf "\nextraVolumes: two services have one with the name %q; with inferenceGateway.enabled they share a pod: give it another name in one" .name) }}{{ end }}
{{- $volumes = append $volumes .name }}
{{- end }}{{ end }}
{{- if and $.Values.httpRoute.enabled (not .entry.endpointPicker.name) }}
{{- $message := "\ninferenceGateway.endpointPicker.name: is empty for model %q, and httpRoute.enabled is true; name the picker's Service, " }}
{{- fail (printf (print $message "or let the picker's chart make the route") .model) }}{{ end }}
{{- if .entry.prefill.enabled }}
{{- fail (printf "\nprefill.enabled: is true for model %q, and so is inferenceGateway.enabled; pods with all services have one engine each" .model) }}{{ end }}
{{- if and $.Values.keda.enabled (eq (int .config.scaling.minReplicas) 0) }}
{{- fail (printf "\nengine.scaling.minReplicas: is 0 for model %q; with inferenceGateway.enabled no gateway is left in which its requests could wait" .model) }}{{ end }}
{{- end }}
{{- end }}{{ end }}
{{- end }}

{{- define "triptych.validateStorage" }}
{{- $needs := include "triptych.modelSource" (dict "storage" .storage "model" "") | empty }}
{{- if and $needs (not .model.model) }}
{{- fail (printf "\n%s.model: is missing; a built-in name or a hub id (org/name), unless storage names a directory" .path) }}{{ end }}
{{- if and (not $needs) .model.model }}
{{- fail (printf "\n%s.model: %q is given, and storage names a directory; leave one out" .path .model.model) }}{{ end }}
{{- if and (eq .storage.type "image") (not .storage.image.reference) }}
{{- fail (printf "\n%s.storage.image.reference: is empty; storage.type image needs an OCI image" .path) }}{{ end }}
{{- end }}

{{/* Argument: a component. */}}
{{- define "triptych.validateComponent" }}
{{- $component := include "triptych.component" . }}
{{- $path := .model | empty | ternary $component (printf "%s of model %q" $component .model) }}
{{- if gt (len .name) 63 }}
{{- fail (printf "\nmodels: %q has %d characters; an object's name has at most 63: shorten the model's or the release's name" .name (len .name)) }}{{ end }}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" .name) }}
{{- fail (printf "\nfullnameOverride: Kubernetes refuses %q as the name of a Service; set it to small letters, digits and dashes, a letter first" .name) }}{{ end }}
{{- with .config.scaling }}
{{- if gt (int .minReplicas) (int .maxReplicas) }}
{{- fail (printf "\n%s: scaling.minReplicas is %v, more than maxReplicas, %v" $path .minReplicas .maxReplicas) }}{{ end }}
{{- end }}
{{- if and (eq .role "engine") .entry.prefill.enabled }}
{{- if not (has (.entry.task | default "auto") (list "auto" "generate")) }}
{{- fail (printf "\n%s: prefill.enabled is true, and task is %v; it is for models that generate text: give this entry prefill.enabled false" $path .entry.task) }}{{ end }}
{{- if eq (.config.settings.enable_prefix_caching | toString) "false" }}
{{- fail (printf "\n%s: prefill.enabled is true, and settings.enable_prefix_caching is false; the KV cache is handed over through the prefix cache" $path) }}{{ end }}
{{- end }}
{{- if include "triptych.hasNodes" . }}
{{- if not .config.nodeKeySecret.name }}
{{- fail (printf "\n%s: nodes is %v, and nodeKeySecret.name is empty; name the Secret with the key that the pods of a group share" $path .config.nodes) }}{{ end }}
{{- $ranks := .config.settings.tensor_parallel_size | default 1 }}
{{- if mod (int $ranks) (int .config.nodes) }}
{{- fail (printf "\n%s: settings.tensor_parallel_size is %v; it must be a multiple of nodes, %v" $path $ranks .config.nodes) }}{{ end }}
{{- if .entry.prefill.enabled }}
{{- fail (printf "\n%s: nodes is %v, and prefill.enabled is true; engines that hand over their KV cache have one pod each" $path .config.nodes) }}{{ end }}
{{- if .companions }}
{{- fail (printf "\n%s: nodes is %v, and inferenceGateway.enabled is true; pods with all services have one engine each" $path .config.nodes) }}{{ end }}
{{- end }}
{{- range $setting, $_ := .config.secretSettings }}
{{- if hasKey ($.config.settings | default dict) $setting }}
{{- fail (printf "\n%s: %s is both in settings and in secretSettings; leave one out" $path $setting) }}{{ end }}
{{- end }}
{{- end }}
